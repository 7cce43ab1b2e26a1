//! Judging an answer. The usual case is one comparison of bytes; the rest is slow and rare.

use crate::mp::{self, Val};
use crate::template::{Fill, Template};

pub struct Check {
    /// Right bodies; the first ones as expected, later ones equal to them but for the order of map keys.
    accepted: Vec<Template>,
    /// Which of them matched last: nearly always the next one too.
    last: usize,
    /// How many were expected from the start.
    expected: usize,
    /// The same as trees, where equal but for the order of map keys is good enough: routers and storages that decode
    /// maps into Lua tables do not keep their order.
    meanings: Vec<Val>,
    /// What is expected has fields of each call, so that it has no one meaning.
    varies: bool,
}

#[derive(Debug, PartialEq)]
pub enum Verdict {
    Right,
    /// `nil, err`: err's name, or its type and code.
    Refused(String),
    Wrong(String),
}

/// Orders of the same map that are remembered: each is compared with, so not without end.
const MAX_ACCEPTED: usize = 32;

impl Check {
    /// `exact`: bytes must be equal, even inside maps.
    pub fn new(answers: Vec<Template>, exact: bool) -> Check {
        let meanings = if exact {
            Vec::new()
        } else {
            answers.iter().filter(|a| a.is_fixed()).filter_map(|a| mp::read_all(&a.bytes)).collect()
        };
        let varies = !exact && answers.iter().any(|a| !a.is_fixed());
        Check { expected: answers.len(), accepted: answers, last: 0, meanings, varies }
    }

    #[inline]
    pub fn judge(&mut self, fill: &Fill, data: &[u8]) -> Verdict {
        if self.accepted[self.last].matches(fill, data) {
            return Verdict::Right;
        }
        self.judge_slowly(fill, data)
    }

    /// How many byte strings passed as right, beyond the expected ones.
    pub fn variants(&self) -> usize {
        self.accepted.len() - self.expected
    }

    #[cold]
    fn judge_slowly(&mut self, fill: &Fill, data: &[u8]) -> Verdict {
        if let Some(i) = self.accepted.iter().position(|t| t.matches(fill, data)) {
            self.last = i;
            return Verdict::Right;
        }
        let Some(val) = mp::read_all(data) else {
            return Verdict::Wrong(format!("not MessagePack: {}", hex(data)));
        };
        if self.meanings.contains(&val) {
            if self.accepted.len() < MAX_ACCEPTED {
                self.last = self.accepted.len();
                self.accepted.push(Template::fixed(data));
            }
            return Verdict::Right;
        }
        if self.varies {
            let means_it = |t: &&Template| {
                let mut rendered = Vec::new();
                t.render(fill, &mut rendered);
                mp::read_all(&rendered).as_ref() == Some(&val)
            };
            let same = self.accepted[..self.expected].iter().find(means_it).map(|t| t.like(fill, data));
            if let Some(learned) = same {
                if let Some(learned) = learned.filter(|_| self.accepted.len() < MAX_ACCEPTED) {
                    self.last = self.accepted.len();
                    self.accepted.push(learned);
                }
                return Verdict::Right;
            }
        }
        match refusal(&val) {
            Some(name) => Verdict::Refused(name),
            None => {
                let mut text = val.json().to_string();
                if text.len() > 400 {
                    let cut = (0..=400).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
                    text.truncate(cut);
                    text.push('…');
                }
                Verdict::Wrong(format!("{} bytes, {text}", data.len()))
            }
        }
    }
}

/// `nil, err` and `[nil, err]`: why the router gave up.
fn refusal(data: &Val) -> Option<String> {
    let (nil, err) = match data.items() {
        [nil, err] => (nil, err),
        [one] => match one.items() {
            [nil, err] => (nil, err),
            _ => return None,
        },
        _ => return None,
    };
    if *nil != Val::Nil {
        return None;
    }
    if let Some(text) = err.str() {
        return Some(text.to_owned());
    }
    let kind = err.field("type")?.str()?;
    let code = err.field("code").and_then(Val::f64).unwrap_or(-1.0);
    Some(match err.field("name").and_then(Val::str) {
        Some(name) => format!("{kind} {name}"),
        None => format!("{kind} {code}"),
    })
}

fn hex(data: &[u8]) -> String {
    data.iter().take(64).map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Returns, Shape, Workload};

    fn check(name: &str, exact: bool) -> Check {
        let w = Workload::by_name(name).unwrap();
        Check::new(w.answers(Shape::Callraw, 30.0, Returns::Values), exact)
    }

    #[test]
    fn both_wrappings_are_right() {
        let mut c = check("T1", false);
        let fill = Fill::default();
        assert_eq!(c.judge(&fill, &[0xdd, 0, 0, 0, 1, 1]), Verdict::Right);
        assert_eq!(c.judge(&fill, &[0xdd, 0, 0, 0, 1, 0x91, 1]), Verdict::Right);
        assert!(matches!(c.judge(&fill, &[0xdd, 0, 0, 0, 1, 2]), Verdict::Wrong(_)));
        assert!(matches!(c.judge(&fill, &[0xdd, 0, 0, 0, 2, 1, 1]), Verdict::Wrong(_)));
        assert!(matches!(c.judge(&fill, &[0xdd, 0, 0, 0, 0]), Verdict::Wrong(_)));
        assert!(matches!(c.judge(&fill, &[0xdd, 0, 0, 0, 1]), Verdict::Wrong(_)));
    }

    #[test]
    fn exact_means_bytes() {
        // The number 1, not in its shortest form.
        let long = [0xdd, 0, 0, 0, 1, 0xcc, 1];
        assert_eq!(check("T1", false).judge(&Fill::default(), &long), Verdict::Right);
        assert!(matches!(check("T1", true).judge(&Fill::default(), &long), Verdict::Wrong(_)));
    }

    #[test]
    fn refusals_are_named() {
        let mut b = vec![0xdd, 0, 0, 0, 2];
        mp::nil(&mut b);
        mp::map(&mut b, 3);
        for (k, v) in [("type", "ShardingError"), ("name", "NO_ROUTE_TO_BUCKET"), ("message", "x")] {
            mp::string(&mut b, k);
            mp::string(&mut b, v);
        }
        let verdict = check("T1", false).judge(&Fill::default(), &b);
        assert_eq!(verdict, Verdict::Refused("ShardingError NO_ROUTE_TO_BUCKET".into()));
    }
}
