//! Bytes of requests and answers as clients and storages send them.

use crate::mp;
use crate::workload::Workload;

/// Where the number of the bucket is in [`callraw`]: four bytes.
pub const BUCKET_AT: usize = 2;
/// Where the sync is in [`answer`]: eight bytes.
pub const ANSWER_SYNC_AT: usize = 14;

/// The arguments of `callraw`, as bench/load sends them.
pub fn callraw(workload: &Workload) -> Vec<u8> {
    let mut out = vec![0x95, 0xce, 0, 0, 0, 1];
    mp::map(&mut out, 2);
    mp::string(&mut out, "mode");
    mp::string(&mut out, "read");
    mp::string(&mut out, "balance");
    mp::boolean(&mut out, true);
    mp::string(&mut out, workload.func);
    out.extend_from_slice(&workload.args.bytes);
    mp::map(&mut out, 1);
    mp::string(&mut out, "timeout");
    mp::uint(&mut out, 30);
    out
}

/// A storage's answer, the whole frame, laid out as Tarantool does.
pub fn answer(workload: &Workload) -> Vec<u8> {
    let mut out = vec![0xce, 0, 0, 0, 0];
    out.extend_from_slice(&[0x83, 0x00, 0xce, 0, 0, 0, 0, 0x01, 0xcf]);
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[0x05, 0xce, 0, 0, 0, 80]);
    out.extend_from_slice(&[0x81, 0x30, 0xdd]);
    out.extend_from_slice(&(1 + workload.values.len() as u32).to_be_bytes());
    mp::boolean(&mut out, true);
    workload.values.iter().for_each(|value| out.extend_from_slice(&value.bytes));
    let len = (out.len() - 5) as u32;
    out[1..5].copy_from_slice(&len.to_be_bytes());
    out
}

pub fn greeting() -> Vec<u8> {
    let first = "Tarantool 3.2.1 (Binary) 8a274925-a26d-47fc-9e1b-af88ce939412";
    let second = "QUFBQUFBQUFBQUFBQUFBQUFBQUFCQkJCQkJCQkJCQkI=";
    format!("{first:<63}\n{second:<63}\n").into_bytes()
}

/// `value` as a tuple extension, as a storage of Tarantool 3 may send one.
pub fn tuple(value: &[u8]) -> Vec<u8> {
    let mut out = vec![0xc8];
    out.extend_from_slice(&(value.len() as u16 + 1).to_be_bytes());
    out.extend_from_slice(&[7, 0]);
    out.extend_from_slice(value);
    out
}
