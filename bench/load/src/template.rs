//! Prebuilt bytes with a few fields left to fill in: a request is one copy and three stores, a check one comparison.

/// What varies from request to request. Each has a fixed width, so that its place never moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// u32
    Sync,
    /// u32
    Bucket,
    /// u64
    Id,
}

#[derive(Debug, Clone, Copy)]
pub struct Patch {
    at: usize,
    field: Field,
}

/// The values of the fields in one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fill {
    pub sync: u32,
    pub bucket: u32,
    pub id: u64,
}

#[derive(Debug, Clone)]
pub struct Template {
    pub bytes: Vec<u8>,
    /// In order of their place.
    patches: Vec<Patch>,
}

impl Field {
    /// Appends room for the field in its widest form; the answer is where it is.
    pub fn write(self, out: &mut Vec<u8>) -> Patch {
        match self {
            Field::Sync | Field::Bucket => out.extend_from_slice(&[0xce, 0, 0, 0, 1]),
            Field::Id => out.extend_from_slice(&[0xcf, 0, 0, 0, 0, 0, 0, 0, 1]),
        }
        Patch { at: out.len() - self.width(), field: self }
    }

    fn width(self) -> usize {
        match self {
            Field::Sync | Field::Bucket => 4,
            Field::Id => 8,
        }
    }
}

impl Template {
    pub fn new(build: impl FnOnce(&mut Vec<u8>, &mut Vec<Patch>)) -> Template {
        let (mut bytes, mut patches) = (Vec::new(), Vec::new());
        build(&mut bytes, &mut patches);
        Template { bytes, patches }
    }

    /// A template of bytes that never vary.
    pub fn fixed(bytes: &[u8]) -> Template {
        Template { bytes: bytes.to_vec(), patches: Vec::new() }
    }

    pub fn append_to(&self, out: &mut Vec<u8>, patches: &mut Vec<Patch>) {
        let base = out.len();
        out.extend_from_slice(&self.bytes);
        patches.extend(self.patches.iter().map(|p| Patch { at: p.at + base, field: p.field }));
    }

    /// Appends the bytes with their fields filled in.
    #[inline]
    pub fn render(&self, fill: &Fill, out: &mut Vec<u8>) {
        let base = out.len();
        out.extend_from_slice(&self.bytes);
        for p in &self.patches {
            let at = base + p.at;
            match p.field {
                Field::Sync => out[at..at + 4].copy_from_slice(&fill.sync.to_be_bytes()),
                Field::Bucket => out[at..at + 4].copy_from_slice(&fill.bucket.to_be_bytes()),
                Field::Id => out[at..at + 8].copy_from_slice(&fill.id.to_be_bytes()),
            }
        }
    }

    /// Whether `data` is what `render` would give.
    #[inline]
    pub fn matches(&self, fill: &Fill, data: &[u8]) -> bool {
        if data.len() != self.bytes.len() {
            return false;
        }
        let mut from = 0;
        for p in &self.patches {
            let end = p.at + p.field.width();
            let same = match p.field {
                Field::Sync => data[p.at..end] == fill.sync.to_be_bytes(),
                Field::Bucket => data[p.at..end] == fill.bucket.to_be_bytes(),
                Field::Id => data[p.at..end] == fill.id.to_be_bytes(),
            };
            if !same || data[from..p.at] != self.bytes[from..p.at] {
                return false;
            }
            from = end;
        }
        data[from..] == self.bytes[from..]
    }

    /// `data`, which differs from this in bytes that do not vary, as a template: with the same fields in the same places, if
    /// they are there.
    pub fn like(&self, fill: &Fill, data: &[u8]) -> Option<Template> {
        let mut rendered = Vec::new();
        self.render(fill, &mut rendered);
        let same = |p: &Patch| {
            let field = p.at - 1..p.at + p.field.width();
            data.get(field.clone()) == rendered.get(field)
        };
        let fits = data.len() == rendered.len() && self.patches.iter().all(same);
        fits.then(|| Template { bytes: data.to_vec(), patches: self.patches.clone() })
    }

    pub fn is_fixed(&self) -> bool {
        self.patches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rendered_matches_and_nothing_else() {
        let t = Template::new(|b, p| {
            b.push(1);
            p.push(Field::Sync.write(b));
            b.push(2);
            p.push(Field::Id.write(b));
            p.push(Field::Bucket.write(b));
            b.push(3);
        });
        let fill = Fill { sync: 7, bucket: 300, id: 1 << 40 };
        let mut out = vec![9];
        t.render(&fill, &mut out);
        let data = &out[1..];
        assert!(t.matches(&fill, data));
        assert!(!t.matches(&Fill { sync: 8, ..fill }, data));
        assert!(!t.matches(&Fill { id: 1, ..fill }, data));
        assert!(!t.matches(&Fill { bucket: 301, ..fill }, data));
        for i in 0..data.len() {
            let mut bad = data.to_vec();
            bad[i] ^= 1;
            assert!(!t.matches(&fill, &bad), "byte {i}");
        }
        assert!(!t.matches(&fill, &data[1..]));
    }
}
