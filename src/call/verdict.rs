//! What a storage's answer means for a call: done, failed, ask elsewhere. No side effects.
//!
//! Errors are judged by type *and* code. vshard compares codes alone, so that a user's error with the number of one of its own
//! runs the function again and again; see docs/compat.md.

use crate::error::{box_code, code};
use crate::wire::iproto::{self, Answer, TYPE_ERROR};
use crate::wire::mp::{Cursor, Fault};
use crate::wire::vshard::{self, ErrorView, StorageAnswer};

/// The shape in which the function's values come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Envelope {
    /// `vshard.storage.call`: a status flag, then the values.
    Storage,
    /// A plain CALL of one of vshard's own functions: the values.
    Vshard,
    /// A plain CALL of a user's function: the values, and any error is his.
    Plain,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Values {
        values: &'a [u8],
        count: u32,
        /// No extension is in them.
        is_plain: bool,
    },
    /// The user's function raised, or the storage failed in a way that asking again does not mend.
    Failed(Error<'a>),
    /// Nothing was run: the bucket is not here, moving, or locked.
    Moved(Error<'a>),
    /// Nothing was run: this instance is not the master.
    NonMaster(Error<'a>),
    /// Nothing was run, and this instance can not serve for a while: vshard is not loaded, not permitted or disabled on it.
    Unusable(Error<'a>),
    /// The instance could not tell within its own time; another one may.
    Elsewhere(Error<'a>),
}

/// An error object: as it came, or made from an IPROTO error.
#[derive(Debug, PartialEq, Eq)]
pub enum Error<'a> {
    Borrowed(&'a [u8]),
    Made(Vec<u8>),
}

impl Error<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Error::Borrowed(bytes) => bytes,
            Error::Made(bytes) => bytes,
        }
    }
}

/// Judges the answer of type `kind` whose packet body is `body`. A fault means that the answer makes no sense.
pub fn judge(envelope: Envelope, kind: u64, body: &[u8]) -> Result<Verdict<'_>, Fault> {
    let answer = iproto::answer(body)?;
    if kind & TYPE_ERROR != 0 {
        return exception(envelope, kind, &answer);
    }
    match envelope {
        Envelope::Vshard | Envelope::Plain => {
            let Some(data) = answer.data else {
                return Ok(Verdict::Values { values: b"", count: 0, is_plain: true });
            };
            let mut cursor = Cursor::new(data);
            let count = cursor.array()?;
            Ok(Verdict::Values { values: cursor.rest(), count, is_plain: answer.is_plain })
        }
        Envelope::Storage => {
            let data = answer.data.ok_or(Fault::Expected("a status flag before the values"))?;
            Ok(match vshard::storage_answer(data)? {
                StorageAnswer::Values { values, count } => {
                    Verdict::Values { values, count, is_plain: answer.is_plain }
                }
                StorageAnswer::Raised(error) => Verdict::Failed(Error::Borrowed(error)),
                StorageAnswer::Refused(error) => refusal(error),
            })
        }
    }
}

fn refusal(error: &[u8]) -> Verdict<'_> {
    let view = ErrorView::parse(error);
    let error = Error::Borrowed(error);
    if view.kind != crate::error::SHARDING_ERROR.as_bytes() {
        return Verdict::Failed(error);
    }
    match view.code {
        code::WRONG_BUCKET | code::TRANSFER_IS_IN_PROGRESS | code::BUCKET_IS_LOCKED => Verdict::Moved(error),
        code::NON_MASTER => Verdict::NonMaster(error),
        // BUCKET_IS_CORRUPTED above all: the function has run, and must not run again.
        _ => Verdict::Failed(error),
    }
}

fn exception<'a>(envelope: Envelope, kind: u64, answer: &Answer<'_>) -> Result<Verdict<'a>, Fault> {
    let mut error = Vec::new();
    if envelope == Envelope::Plain {
        vshard::write_user_exception(&mut error, kind, answer)?;
        return Ok(Verdict::Failed(Error::Made(error)));
    }
    vshard::write_exception(&mut error, kind, answer)?;
    let view = ErrorView::parse(&error);
    let unusable = view.is_sharding(code::STORAGE_IS_DISABLED)
        || view.is_sharding(code::INSTANCE_NAME_MISMATCH)
        || (view.code == box_code::ACCESS_DENIED
            && view.message.starts_with(b"Execute access to function 'vshard."))
        || (view.code == box_code::NO_SUCH_PROC && view.message.starts_with(b"Procedure 'vshard."));
    // Raised, not returned, by a function called directly on a replicaset (replicaset.lua: can_retry_after_error).
    let elsewhere = envelope == Envelope::Vshard
        && (view.is_sharding(code::WRONG_BUCKET) || view.is_sharding(code::TRANSFER_IS_IN_PROGRESS));
    let error = Error::Made(error);
    Ok(if unusable {
        Verdict::Unusable(error)
    } else if elsewhere {
        Verdict::Elsewhere(error)
    } else {
        Verdict::Failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mp;

    fn sharding(code: u64) -> Vec<u8> {
        let mut error = vec![0x82];
        mp::write_str(&mut error, "type");
        mp::write_str(&mut error, "ShardingError");
        mp::write_str(&mut error, "code");
        mp::write_uint(&mut error, code);
        error
    }

    fn client_error(code: u64) -> Vec<u8> {
        let mut error = vec![0x82];
        mp::write_str(&mut error, "type");
        mp::write_str(&mut error, "ClientError");
        mp::write_str(&mut error, "code");
        mp::write_uint(&mut error, code);
        error
    }

    fn answered(status: u8, error: &[u8]) -> Vec<u8> {
        [b"\x81\x30\x92", &[status][..], error].concat()
    }

    #[test]
    fn every_code_in_every_place() {
        for code in 0..64 {
            let error = sharding(code);
            let refused = answered(0xc0, &error);
            let verdict = judge(Envelope::Storage, 0, &refused).unwrap();
            let borrowed = Error::Borrowed(&error[..]);
            let expected = match code {
                1 | 7 | 22 => Verdict::Moved(borrowed),
                2 => Verdict::NonMaster(borrowed),
                _ => Verdict::Failed(borrowed),
            };
            assert_eq!(verdict, expected, "refused with {code}");
            // The user's function may raise whatever it likes: it has run, and the error is the caller's.
            let raised = answered(0xc2, &error);
            let verdict = judge(Envelope::Storage, 0, &raised).unwrap();
            assert_eq!(verdict, Verdict::Failed(Error::Borrowed(&error)), "raised {code}");
            let error = client_error(code);
            let refused = answered(0xc0, &error);
            let verdict = judge(Envelope::Storage, 0, &refused).unwrap();
            assert_eq!(verdict, Verdict::Failed(Error::Borrowed(&error)), "ClientError {code}");
            // The user's function returned nil and an error: values.
            let returned = [b"\x81\x30\x93\xc3\xc0", &error[..]].concat();
            let verdict = judge(Envelope::Storage, 0, &returned).unwrap();
            assert_eq!(verdict, Verdict::Values { values: &returned[4..], count: 2, is_plain: true });
        }
    }

    #[test]
    fn exceptions_of_a_storage_that_can_not_serve() {
        let exception = |code: u64, message: &str| {
            let mut body = b"\x81\x31".to_vec();
            mp::write_str(&mut body, message);
            body.push(0);
            body.pop();
            (TYPE_ERROR | code, body)
        };
        let unusable = [
            exception(33, "Procedure 'vshard.storage.call' is not defined"),
            exception(42, "Execute access to function 'vshard.storage.call' is denied for user 'guest'"),
            exception(32, r#"{"type":"ShardingError","code":33,"name":"STORAGE_IS_DISABLED","message":"m"}"#),
        ];
        for (kind, body) in &unusable {
            assert!(matches!(judge(Envelope::Storage, *kind, body), Ok(Verdict::Unusable(_))), "{kind}");
        }
        let (kind, body) = exception(33, "Procedure 'other' is not defined");
        assert!(matches!(judge(Envelope::Vshard, kind, &body), Ok(Verdict::Failed(_))));
    }

    #[test]
    fn a_users_exception_is_his_whatever_it_looks_like() {
        for code in 0..64 {
            let mut body = b"\x81\x31".to_vec();
            mp::write_str(&mut body, &format!(r#"{{"type":"ShardingError","code":{code},"message":"m"}}"#));
            let verdict = judge(Envelope::Plain, TYPE_ERROR | 32, &body).unwrap();
            let Verdict::Failed(error) = verdict else { panic!("{code}: {verdict:?}") };
            assert_eq!(ErrorView::parse(error.bytes()).code, 32);
            let elsewhere =
                matches!(judge(Envelope::Vshard, TYPE_ERROR | 32, &body), Ok(Verdict::Elsewhere(_)));
            assert_eq!(elsewhere, code == 1 || code == 7);
        }
    }

    #[test]
    fn nonsense_is_a_fault() {
        for body in
            [&b""[..], b"\x80", b"\x81\x30\x90", b"\x81\x30\x91\x05", b"\x81\x30\x05", b"\x81\x30\x92\xc3"]
        {
            assert!(judge(Envelope::Storage, 0, body).is_err(), "{body:02x?}");
        }
        assert_eq!(
            judge(Envelope::Plain, 0, b""),
            Ok(Verdict::Values { values: b"", count: 0, is_plain: true })
        );
    }
}
