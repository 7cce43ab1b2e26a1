//! Authentication scrambles.

use sha1::{Digest, Sha1};

pub const SCRAMBLE_LEN: usize = 20;

/// chap-sha1: `h1 xor sha1(salt ‖ sha1(h1))` where `h1 = sha1(password)`.
/// Source: Tarantool `src/lib/core/scramble.h`.
pub fn chap_sha1(password: &str, salt: &[u8; SCRAMBLE_LEN]) -> [u8; SCRAMBLE_LEN] {
    let h1: [u8; SCRAMBLE_LEN] = Sha1::digest(password.as_bytes()).into();
    let h2 = Sha1::digest(h1);
    let mask = Sha1::new().chain_update(salt).chain_update(h2).finalize();
    std::array::from_fn(|i| h1[i] ^ mask[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's side: it stores h2 and checks that the scramble gives back its preimage.
    #[test]
    fn a_server_that_stores_h2_accepts_the_scramble() {
        let salt = *b"0123456789abcdefghij";
        let stored: [u8; 20] = Sha1::digest(Sha1::digest(b"secret")).into();
        let accepts = |scramble: [u8; 20]| {
            let mask = Sha1::new().chain_update(salt).chain_update(stored).finalize();
            let h1: [u8; 20] = std::array::from_fn(|i| scramble[i] ^ mask[i]);
            <[u8; 20]>::from(Sha1::digest(h1)) == stored
        };
        assert!(accepts(chap_sha1("secret", &salt)));
        assert!(!accepts(chap_sha1("Secret", &salt)));
    }
}
