//! The join token: a secret that the MGS shares with the targets that may register, wherever they are.
//!
//! The token itself never travels. A registration carries an HMAC-SHA256 over the MGS's handle of the connection, the
//! registration's bytes and the UUID of the target's store. The MGS gives each connection another handle, so a recorded
//! proof is of no use on another connection; and the registration names the NIDs of its sender, which the MGS compares with
//! the connection's. Nor does a proof of one store let another store take its index.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Bytes of a token.
const TOKEN: usize = 32;
/// Tells these proofs from any other use of the token.
const PURPOSE: &[u8] = b"nacre: registration of a target, 2\0";

/// A join token.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken([u8; TOKEN]);

impl JoinToken {
    /// A token of these bytes, which are to be random.
    pub fn new(random: [u8; TOKEN]) -> JoinToken {
        JoinToken(random)
    }

    /// The proof that the sender of the registration `info` has this token, on the connection that the MGS calls
    /// `handle`, for the store with this UUID (none: a store that has none).
    pub fn prove(&self, handle: u64, info: &[u8], store: Option<&str>) -> [u8; 32] {
        self.mac(handle, info, store).finalize().into_bytes().into()
    }

    /// Whether a proof is right. Takes as long for a wrong one as for a right one.
    pub fn verify(&self, handle: u64, info: &[u8], store: Option<&str>, proof: &[u8]) -> bool {
        self.mac(handle, info, store).verify_slice(proof).is_ok()
    }

    /// The token as it stands in a file.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn mac(&self, handle: u64, info: &[u8], store: Option<&str>) -> Hmac<Sha256> {
        // HMAC fills a key up with zeros to the block of its hash; filled up already it always fits.
        let mut key = [0; 64];
        key[..TOKEN].copy_from_slice(&self.0);
        let mut mac = <Hmac<Sha256> as Mac>::new(&key.into());
        mac.update(PURPOSE);
        mac.update(&handle.to_le_bytes());
        // The length says where one ends and the other begins.
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
        let mut token = [0; TOKEN];
        let bad = || format!("expected a join token: {} hexadecimal digits", 2 * TOKEN);
        if digits.len() != 2 * TOKEN {
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
    fn a_token_is_read_back_as_written_and_shown_to_nobody() {
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
    fn a_proof_holds_for_one_token_one_connection_one_registration_and_one_store() {
        let token = JoinToken::new([7; TOKEN]);
        let proof = token.prove(1, b"OST0000", Some("a"));
        assert!(token.verify(1, b"OST0000", Some("a"), &proof));
        assert!(!token.verify(2, b"OST0000", Some("a"), &proof));
        assert!(!token.verify(1, b"OST0001", Some("a"), &proof));
        for other in [Some("b"), Some("aa"), None] {
            assert!(!token.verify(1, b"OST0000", other, &proof), "{other:?}");
        }
        assert!(!token.verify(1, b"OST0000a", None, &proof));
        assert!(!JoinToken::new([8; TOKEN]).verify(1, b"OST0000", Some("a"), &proof));
        for wrong in [&proof[..31], &[], &[0; 32], &[0; 33]] {
            assert!(!token.verify(1, b"OST0000", Some("a"), wrong));
        }
    }
}
