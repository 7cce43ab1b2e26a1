//! Paths into MessagePack, in the language of Tarantool's JSON indexes: `[1].customer.id`, `[2]["first name"]`. Positions
//! count from 1. What a path passes by is stepped over, never decoded; nothing recurses, and nothing is allocated on the way.
//!
//! As in an index: `[n]` is the item of an array, or the value of a map's integer key; `.name` and `["name"]` the value of a
//! string key. Of equal keys the first counts.

use std::fmt;
use std::ops::Range;

use crate::wire::mp::{Cursor, Fault, Kind};

/// A step of a path, and where its text begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'p> {
    pub to: To<'p>,
    pub start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'p> {
    /// Counted from 1.
    Index(u64),
    Key(&'p [u8]),
}

/// Why a text is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    Empty,
    /// Number of the first character that is wrong, from 1.
    Syntax(usize),
    /// `[*]`, which stands for many values.
    Multikey,
    /// An index above 2^64.
    Huge,
}

/// A path, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: Box<str>,
    steps: Box<[Compiled]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Compiled {
    to: CompiledTo,
    start: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CompiledTo {
    Index(u64),
    /// Where the name is in the path's text.
    Key(Range<usize>),
}

impl Path {
    pub fn new(text: &[u8]) -> Result<Path, BadPath> {
        let mut steps = Vec::new();
        for step in Steps::of(text)? {
            let Step { to, start } = step?;
            let to = match to {
                To::Index(index) => CompiledTo::Index(index),
                To::Key(name) => {
                    let from = name.as_ptr().addr() - text.as_ptr().addr();
                    CompiledTo::Key(from..from + name.len())
                }
            };
            steps.push(Compiled { to, start });
        }
        // `Steps` has looked at it.
        let text = String::from_utf8_lossy(text).into_owned().into_boxed_str();
        Ok(Path { text, steps: steps.into_boxed_slice() })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        self.steps.iter().map(|Compiled { to, start }| {
            let to = match to {
                CompiledTo::Index(index) => To::Index(*index),
                CompiledTo::Key(name) => To::Key(&self.text.as_bytes()[name.clone()]),
            };
            Step { to, start: *start }
        })
    }

    /// Moves `cursor` from a value to the part of it where the path leads.
    pub fn walk(&self, cursor: &mut Cursor<'_>) -> Result<(), Stray> {
        self.steps().try_for_each(|step| step.take(cursor))
    }
}

/// A path that is read as it is walked: for one that comes with each call, and is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline<'p>(&'p str);

impl<'p> Inline<'p> {
    pub fn new(text: &'p [u8]) -> Result<Inline<'p>, BadPath> {
        let mut steps = Steps::of(text)?;
        let text = steps.text;
        steps.try_for_each(|step| step.map(|_| ()))?;
        Ok(Inline(text))
    }

    /// One that [`Inline::new`] has seen before.
    pub fn known(text: &'p [u8]) -> Result<Inline<'p>, BadPath> {
        Steps::of(text).map(|steps| Inline(steps.text))
    }

    pub fn text(&self) -> &'p str {
        self.0
    }

    /// As [`Path::walk`].
    pub fn walk(&self, cursor: &mut Cursor<'_>) -> Result<(), Stray> {
        // It was read whole before; a fault would end the walk early.
        Steps { text: self.0, at: 0 }.map_while(Result::ok).try_for_each(|step| step.take(cursor))
    }
}

/// Where a path has left the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray {
    /// How much of the path's text led somewhere.
    pub walked: usize,
    pub why: Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// An array with fewer items.
    Short(u32),
    /// A map without the key.
    NoKey,
    /// Something without parts, or a name in an array.
    Not(Kind),
    Broken(Fault),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Short(0) => f.write_str("is empty"),
            Lost::Short(1) => f.write_str("has one item"),
            Lost::Short(count) => write!(f, "has {count} items"),
            Lost::NoKey => f.write_str("has no such key"),
            Lost::Not(kind @ (Kind::Array | Kind::Uint | Kind::Int | Kind::Ext)) => {
                write!(f, "is an {}", kind.name())
            }
            Lost::Not(Kind::Nil) => f.write_str("is nil"),
            Lost::Not(kind) => write!(f, "is a {}", kind.name()),
            Lost::Broken(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadPath::Empty => f.write_str("it is empty"),
            BadPath::Syntax(at) => write!(f, "syntax error at character {at}"),
            BadPath::Multikey => f.write_str("[*] stands for many values"),
            BadPath::Huge => f.write_str("an index is too large"),
        }
    }
}

impl Step<'_> {
    fn take(self, cursor: &mut Cursor<'_>) -> Result<(), Stray> {
        self.lead(cursor).map_err(|why| Stray { walked: self.start, why })
    }

    fn lead(self, cursor: &mut Cursor<'_>) -> Result<(), Lost> {
        let kind = cursor.peek().map_err(Lost::Broken)?;
        match (self.to, kind) {
            (To::Index(index), Kind::Array) => {
                let count = cursor.array().map_err(Lost::Broken)?;
                if index > u64::from(count) {
                    return Err(Lost::Short(count));
                }
                cursor.skip_many(index - 1).map(|_| ()).map_err(Lost::Broken)
            }
            (To::Index(index), Kind::Map) => {
                find(cursor, |cursor| Ok(is_integer(cursor)? && cursor.uint() == Ok(index)))
            }
            (To::Key(name), Kind::Map) => {
                find(cursor, |cursor| Ok(cursor.peek()? == Kind::Str && cursor.str()? == name))
            }
            (_, kind) => Err(Lost::Not(kind)),
        }
    }
}

fn is_integer(cursor: &Cursor<'_>) -> Result<bool, Fault> {
    Ok(matches!(cursor.peek()?, Kind::Uint | Kind::Int))
}

/// Moves `cursor` from a map to the value of the first key that `is_it`, which reads a copy.
fn find<'a>(
    cursor: &mut Cursor<'a>,
    is_it: impl Fn(&mut Cursor<'a>) -> Result<bool, Fault>,
) -> Result<(), Lost> {
    let mut look = || {
        for _ in 0..cursor.map()? {
            let mut key = *cursor;
            let found = is_it(&mut key)?;
            cursor.skip()?;
            if found {
                return Ok(true);
            }
            cursor.skip()?;
        }
        Ok(false)
    };
    match look() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Lost::NoKey),
        Err(fault) => Err(Lost::Broken(fault)),
    }
}

/// Reads the text of a path step by step.
struct Steps<'p> {
    text: &'p str,
    at: usize,
}

impl<'p> Steps<'p> {
    fn of(text: &'p [u8]) -> Result<Steps<'p>, BadPath> {
        if text.is_empty() {
            return Err(BadPath::Empty);
        }
        match std::str::from_utf8(text) {
            Ok(text) => Ok(Steps { text, at: 0 }),
            Err(error) => {
                let valid = String::from_utf8_lossy(&text[..error.valid_up_to()]);
                Err(BadPath::Syntax(valid.chars().count() + 1))
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The step at `at`, which is not the end.
    fn step(&mut self) -> Result<Step<'p>, BadPath> {
        let start = self.at;
        let to = match self.text.as_bytes()[start] {
            b'[' => {
                self.at += 1;
                let to = match self.peek() {
                    Some(quote @ (b'"' | b'\'')) => To::Key(self.quoted(quote)?),
                    Some(b'*') => return Err(BadPath::Multikey),
                    _ => To::Index(self.index()?),
                };
                if self.peek() != Some(b']') {
                    return Err(self.fault());
                }
                self.at += 1;
                to
            }
            b'.' => {
                self.at += 1;
                To::Key(self.name()?)
            }
            _ if start == 0 => To::Key(self.name()?),
            _ => return Err(self.fault()),
        };
        Ok(Step { to, start })
    }

    fn index(&mut self) -> Result<u64, BadPath> {
        let from = self.at;
        let mut index = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let next = index.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
            index = next.ok_or(BadPath::Huge)?;
            self.at += 1;
        }
        if index == 0 {
            self.at = from;
            return Err(self.fault());
        }
        Ok(index)
    }

    /// Up to the next quote of the same kind; there are no escapes.
    fn quoted(&mut self, quote: u8) -> Result<&'p [u8], BadPath> {
        let from = self.at + 1;
        let rest = &self.text.as_bytes()[from..];
        let len = rest.iter().position(|byte| *byte == quote);
        self.at = from + len.unwrap_or(rest.len());
        if len.is_none_or(|len| len == 0) {
            return Err(self.fault());
        }
        let name = &rest[..self.at - from];
        self.at += 1;
        Ok(name)
    }

    /// Letters, digits and underscores, no digit first.
    fn name(&mut self) -> Result<&'p [u8], BadPath> {
        let from = self.at;
        let rest = &self.text[from..];
        let is_first = |c: char| c.is_alphabetic() || c == '_';
        if !rest.starts_with(is_first) {
            return Err(self.fault());
        }
        let len = rest.find(|c: char| !is_first(c) && !c.is_ascii_digit()).unwrap_or(rest.len());
        self.at = from + len;
        Ok(&rest.as_bytes()[..len])
    }

    /// That the character at `at` is wrong.
    fn fault(&self) -> BadPath {
        BadPath::Syntax(self.text[..self.at].chars().count() + 1)
    }
}

impl<'p> Iterator for Steps<'p> {
    type Item = Result<Step<'p>, BadPath>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.at < self.text.len()).then(|| self.step())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Result<Vec<To<'_>>, BadPath> {
        let inline: Result<Vec<_>, _> =
            Steps::of(text.as_bytes()).and_then(|steps| steps.map(|step| step.map(|step| step.to)).collect());
        let compiled = Path::new(text.as_bytes());
        match (&inline, &compiled) {
            (Ok(steps), Ok(path)) => {
                assert!(path.steps().map(|step| step.to).eq(steps.iter().copied()), "{text}");
                assert_eq!(path.text(), text);
            }
            (Err(fault), Err(same)) => assert_eq!(fault, same),
            _ => panic!("{text}: {inline:?} {compiled:?}"),
        }
        inline
    }

    #[test]
    fn texts_that_are_paths() {
        let key = |name: &'static str| To::Key(name.as_bytes());
        let cases = [
            ("[1]", vec![To::Index(1)]),
            ("[1].customer.id", vec![To::Index(1), key("customer"), key("id")]),
            (r#"[2]["first name"]"#, vec![To::Index(2), key("first name")]),
            ("[2]['it\"s']", vec![To::Index(2), key("it\"s")]),
            (r#"a["]"]"#, vec![key("a"), key("]")]),
            ("a.b[007]", vec![key("a"), key("b"), To::Index(7)]),
            (".a", vec![key("a")]),
            ("_1", vec![key("_1")]),
            ("фамилия.имя1", vec![key("фамилия"), key("имя1")]),
            ("[18446744073709551615]", vec![To::Index(u64::MAX)]),
        ];
        for (text, expected) in cases {
            assert_eq!(steps(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn texts_that_are_none() {
        let cases = [
            ("", BadPath::Empty),
            ("[", BadPath::Syntax(2)),
            ("[]", BadPath::Syntax(2)),
            ("[0]", BadPath::Syntax(2)),
            ("[-1]", BadPath::Syntax(2)),
            ("[1", BadPath::Syntax(3)),
            ("[1}", BadPath::Syntax(3)),
            ("[1]a", BadPath::Syntax(4)),
            ("[1] ", BadPath::Syntax(4)),
            ("[1].", BadPath::Syntax(5)),
            ("[1]..a", BadPath::Syntax(5)),
            ("a b", BadPath::Syntax(2)),
            ("1a", BadPath::Syntax(1)),
            ("a.1", BadPath::Syntax(3)),
            (r#"["a"#, BadPath::Syntax(4)),
            (r#"["a']"#, BadPath::Syntax(6)),
            (r#"[""]"#, BadPath::Syntax(3)),
            (r#"["a"b]"#, BadPath::Syntax(5)),
            ("имя[", BadPath::Syntax(5)),
            ("[*]", BadPath::Multikey),
            ("[1][*].a", BadPath::Multikey),
            ("[18446744073709551616]", BadPath::Huge),
        ];
        for (text, expected) in cases {
            assert_eq!(steps(text), Err(expected), "{text}");
        }
        assert_eq!(Path::new(b"a\xff"), Err(BadPath::Syntax(2)));
        assert_eq!(Inline::new(b"a\xff"), Err(BadPath::Syntax(2)));
    }

    /// What is at the path, in bytes.
    fn at<'a>(text: &str, value: &'a [u8]) -> Result<&'a [u8], Stray> {
        let mut cursor = Cursor::new(value);
        let walked = Path::new(text.as_bytes()).unwrap().walk(&mut cursor);
        let mut same = Cursor::new(value);
        assert_eq!(Inline::new(text.as_bytes()).unwrap().walk(&mut same), walked);
        walked?;
        assert_eq!(cursor.position(), same.position());
        Ok(cursor.span().unwrap())
    }

    #[test]
    fn paths_lead_into_values() {
        // [{"a": {"b": [5, {2: "two", -1: nil, "2": 3}]}, 7: 8}, "end"]
        let value = b"\x92\x82\xa1a\x81\xa1b\x92\x05\x83\xd1\x00\x02\xa3two\xff\xc0\xa12\x03\x07\x08\xa3end";
        assert_eq!(at("[1].a.b[1]", value), Ok(&b"\x05"[..]));
        assert_eq!(at("[1].a.b[2][2]", value), Ok(&b"\xa3two"[..]), "a number in a map is a key");
        assert_eq!(at("[1].a.b[2][\"2\"]", value), Ok(&b"\x03"[..]), "and a text another one");
        assert_eq!(at("[1][7]", value), Ok(&b"\x08"[..]));
        assert_eq!(at("[2]", value), Ok(&b"\xa3end"[..]));
        assert_eq!(at("[1].a", value), Ok(&value[4..22]));
        let lost = |walked, why| Err(Stray { walked, why });
        assert_eq!(at("[3]", value), lost(0, Lost::Short(2)));
        assert_eq!(at("[1].b.c", value), lost(3, Lost::NoKey));
        assert_eq!(at("[1][1]", value), lost(3, Lost::NoKey));
        assert_eq!(at("[1].a.b.c", value), lost(7, Lost::Not(Kind::Array)));
        assert_eq!(at("[2][1]", value), lost(3, Lost::Not(Kind::Str)));
    }

    #[test]
    fn the_first_of_equal_keys() {
        assert_eq!(at("a", b"\x82\xa1a\x01\xd9\x01a\x02"), Ok(&b"\x01"[..]));
        assert_eq!(at("a", b"\x82\xd9\x01a\x01\xa1a\x02"), Ok(&b"\x01"[..]), "of any width");
    }

    #[test]
    fn damaged_values() {
        let mut cursor = Cursor::new(b"\xdd\xff\xff\xff\xff\x01");
        let path = Path::new(b"[4294967295]").unwrap();
        let lost = path.walk(&mut cursor).unwrap_err();
        assert_eq!(lost.why, Lost::Broken(Fault::Truncated), "a promise of more than there is");
        let mut cursor = Cursor::new(b"\xdf\xff\xff\xff\xff\x01");
        assert_eq!(path.walk(&mut cursor).unwrap_err().why, Lost::Broken(Fault::Truncated));
        let mut cursor = Cursor::new(b"\x81\xc1");
        let path = Path::new(b"a").unwrap();
        assert_eq!(path.walk(&mut cursor).unwrap_err().why, Lost::Broken(Fault::Reserved));
    }
}
