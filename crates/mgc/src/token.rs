//! The join token: a secret of the MGS that allows targets on any node to register.
//!
//! The token itself is never sent. A registration carries an HMAC-SHA256, keyed with the token, of
//! three things: the MGS's handle of the connection, the registration's bytes, and the UUID of the
//! target's store. Each connection has its own handle, so a recorded proof is useless on another
//! connection. The registration contains the target's NIDs, and the MGS compares them with the NID
//! of the connection. A proof for one store does not let another store take its index.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Length of a token in bytes.
const TOKEN_LEN: usize = 32;
/// Domain separation: a value computed for another purpose is not a proof.
const PURPOSE: &[u8] = b"nacre: registration of a target, 2\0";

/// A join token.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken([u8; TOKEN_LEN]);

impl JoinToken {
    /// A token of these bytes, which must be random.
    pub fn new(random: [u8; TOKEN_LEN]) -> JoinToken {
        JoinToken(random)
    }

    /// Proves that the sender of the registration `info` has this token. The proof is valid on the
    /// connection with the MGS's handle `handle`, and for the store with the UUID `store` (`None`:
    /// a store without UUID).
    pub fn prove(&self, handle: u64, info: &[u8], store: Option<&str>) -> [u8; 32] {
        self.mac(handle, info, store).finalize().into_bytes().into()
    }

    /// Whether a proof is correct; in constant time.
    pub fn verify(&self, handle: u64, info: &[u8], store: Option<&str>, proof: &[u8]) -> bool {
        self.mac(handle, info, store).verify_slice(proof).is_ok()
    }

    /// The token as text, for a file.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn mac(&self, handle: u64, info: &[u8], store: Option<&str>) -> Hmac<Sha256> {
        // Pad the key with zeros to the hash's block size, as HMAC does: `new` takes only keys of
        // this size.
        let mut key = [0; 64];
        key[..TOKEN_LEN].copy_from_slice(&self.0);
        let mut mac = <Hmac<Sha256> as Mac>::new(&key.into());
        mac.update(PURPOSE);
        mac.update(&handle.to_le_bytes());
        // The length marks the boundary between the parts.
        mac.update(&(info.len() as u64).to_le_bytes());
        mac.update(info);
        mac.update(store.unwrap_or_default().as_bytes());
        mac
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(secret)")
    }
}

impl FromStr for JoinToken {
    type Err = String;

    fn from_str(text: &str) -> Result<JoinToken, String> {
        let digits = text.trim().as_bytes();
        let mut token = [0; TOKEN_LEN];
        let bad = || format!("expected a join token: {} hexadecimal digits", 2 * TOKEN_LEN);
        if digits.len() != 2 * TOKEN_LEN {
            return Err(bad());
        }
        for (byte, pair) in token.iter_mut().zip(digits.chunks(2)) {
            let digit = |c: &u8| char::from(*c).to_digit(16);
            let value = pair.iter().try_fold(0, |value, c| Some(value * 16 + digit(c)?));
            *byte = value.ok_or_else(bad)? as u8;
        }
        Ok(JoinToken(token))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_round_trip_bad_text_is_refused_and_debug_hides_them() {
        let token = JoinToken::new(std::array::from_fn(|i| 250_u8.wrapping_add(i as u8)));
        assert_eq!(format!("{}\n", token.to_text()).parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("fa"));
        for bad in [
            "",
            "ab",
            &"0".repeat(63),
            &"0".repeat(65),
            &"x".repeat(64),
            &"é".repeat(32),
        ] {
            assert!(bad.parse::<JoinToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_proof_covers_token_connection_registration_and_store() {
        let token = JoinToken::new([7; TOKEN_LEN]);
        let proof = token.prove(1, b"OST0000", Some("a"));
        assert!(token.verify(1, b"OST0000", Some("a"), &proof));
        assert!(!token.verify(2, b"OST0000", Some("a"), &proof));
        assert!(!token.verify(1, b"OST0001", Some("a"), &proof));
        for other in [Some("b"), Some("aa"), None] {
            assert!(!token.verify(1, b"OST0000", other, &proof), "{other:?}");
        }
        assert!(!token.verify(1, b"OST0000a", None, &proof));
        assert!(!JoinToken::new([8; TOKEN_LEN]).verify(1, b"OST0000", Some("a"), &proof));
        for wrong in [&proof[..31], &[], &[0; 32], &[0; 33]] {
            assert!(!token.verify(1, b"OST0000", Some("a"), wrong));
        }
    }
}
