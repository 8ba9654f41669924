//! Object capabilities: the keys that the MGS shares with registered targets, and the signatures
//! made with them.
//!
//! An MDT signs a [`LustreCapa`] for one object, one OST and one client. An OST that requires
//! capabilities checks the signature with its own copy of the key. The keys are never sent to
//! clients.
//!
//! After a rotation the MGS keeps the previous key beside the current one. Capabilities signed with
//! the previous key stay valid until the next rotation, so clients have time to get new ones.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::time::Instant;
use wire::{LustreCapa, WireStruct};

/// Length of a key in bytes.
const KEY_LEN: usize = 32;
/// Maximum number of keys: the current and the previous one.
const KEYS_MAX: usize = 2;
/// Domain separation: a signature made for another purpose is not a capability's signature.
const PURPOSE: &[u8] = b"nacre: object capability, 1\0";
/// Number of signed bytes of a capability: all before `lc_hmac` and `lc_hmac_unused`.
const SIGNED_LEN: usize = LustreCapa::SIZE - 64;
/// The signature's algorithm, in the highest 8 bits of `lc_flags`: 2, HMAC-SHA256. Lustre used 1,
/// HMAC-SHA1.
const HMAC_SHA256: u32 = 2 << 24;
/// An MDT signs with the previous key for this long after it has received a new one, because an
/// OST may receive the new key later.
const PREVIOUS_KEY_PERIOD: Duration = Duration::from_secs(30);

/// A key and its number.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    id: u32,
    bytes: [u8; KEY_LEN],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, secret)", self.id)
    }
}

/// The keys that the MGS shares with all registered targets, the current one first. Text form:
/// `ID:HEX ID:HEX`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapaKeys(Vec<Key>);

/// The client and the target for which a capability is valid.
#[derive(Debug, Clone, Copy)]
pub struct CapaScope<'a> {
    /// UUID of the OST.
    pub target: &'a str,
    /// UUID of the client.
    pub client: &'a str,
}

/// The reason why a capability is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapaError {
    /// It was signed with the key of this id, which is newer than all keys of this target.
    #[error("it was signed with key {0}, which this target has not read from the MGS yet")]
    NewKey(u32),
    /// It was signed with the key of this id, which is no longer valid.
    #[error("it was signed with key {0}, which was replaced")]
    OldKey(u32),
    /// It is for another client or another target, was changed, or was not signed by an MDT.
    #[error("its signature is wrong")]
    Signature,
    /// It expired this many seconds ago.
    #[error("it expired {0} s ago by this server's clock")]
    Expired(u64),
}

impl CapaKeys {
    /// The keys after a rotation: a new current key, and the former current one as the previous
    /// key. `random`, the new key, must be random.
    pub fn rotated(&self, random: [u8; KEY_LEN]) -> CapaKeys {
        let id = self.0.first().map_or(0, |key| key.id).wrapping_add(1).max(1);
        let mut keys = vec![Key { id, bytes: random }];
        keys.extend(self.0.iter().take(KEYS_MAX - 1).cloned());
        CapaKeys(keys)
    }

    /// The ids of the keys, the current one first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|key| key.id)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text form, for the key file and the MGS's log.
    pub fn to_text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let keys = self.0.iter().map(|key| format!("{}:{}", key.id, hex(&key.bytes)));
        keys.collect::<Vec<_>>().join(" ")
    }

    /// Checks the signature of a capability that this client sent to this target.
    ///
    /// # Errors
    ///
    /// `NewKey`, `OldKey` or `Signature`.
    pub fn check_signature(&self, scope: CapaScope<'_>, capa: &LustreCapa) -> Result<(), CapaError> {
        let Some(key) = self.0.iter().find(|key| key.id == capa.lc_keyid) else {
            let newest = self.0.first().map_or(0, |key| key.id);
            return Err(match capa.lc_keyid > newest {
                true => CapaError::NewKey(capa.lc_keyid),
                false => CapaError::OldKey(capa.lc_keyid),
            });
        };
        let signed = key.mac(scope, capa).verify_slice(&capa.lc_hmac);
        signed.map_err(|_| CapaError::Signature)
    }

    /// Checks that the capability has not expired, then its signature; `now` in seconds since 1970.
    ///
    /// # Errors
    ///
    /// `Expired`, or an error of [`CapaKeys::check_signature`].
    pub fn check(&self, scope: CapaScope<'_>, capa: &LustreCapa, now: u64) -> Result<(), CapaError> {
        // Check the expiry first: a caller that waits for a new key (`NewKey`) must stop when the
        // capability expires.
        match now.checked_sub(capa.lc_expiry.into()) {
            None | Some(0) => self.check_signature(scope, capa),
            Some(late) => Err(CapaError::Expired(late)),
        }
    }
}

impl Key {
    fn mac(&self, scope: CapaScope<'_>, capa: &LustreCapa) -> Hmac<Sha256> {
        // Pad the key with zeros to the hash's block size, as HMAC does: `new` takes only keys of
        // this size.
        let mut block = [0; 64];
        block[..KEY_LEN].copy_from_slice(&self.bytes);
        let mut mac = <Hmac<Sha256> as Mac>::new(&block.into());
        mac.update(PURPOSE);
        for name in [scope.target, scope.client] {
            mac.update(&(name.len() as u64).to_le_bytes());
            mac.update(name.as_bytes());
        }
        mac.update(&capa.to_bytes()[..SIGNED_LEN]);
        mac
    }
}

impl FromStr for CapaKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<CapaKeys, String> {
        let bad = || {
            format!(
                "expected up to {KEYS_MAX} keys, ID:HEX each, with {} hexadecimal digits",
                2 * KEY_LEN
            )
        };
        let key = |word: &str| {
            let (id, hex) = word.split_once(':')?;
            let (id, hex) = (id.parse().ok()?, hex.as_bytes());
            let mut bytes = [0; KEY_LEN];
            if hex.len() != 2 * KEY_LEN {
                return None;
            }
            for (byte, pair) in bytes.iter_mut().zip(hex.chunks(2)) {
                let digit = |c: &u8| char::from(*c).to_digit(16);
                *byte = pair.iter().try_fold(0, |value, c| Some(value * 16 + digit(c)?))? as u8;
            }
            Some(Key { id, bytes })
        };
        let keys: Option<Vec<Key>> = text.split_whitespace().map(key).collect();
        let keys = keys.filter(|keys| keys.len() <= KEYS_MAX).ok_or_else(bad)?;
        Ok(CapaKeys(keys))
    }
}

/// The keys of a target, which change at run time.
pub struct CapaKeyring(ArcSwap<KeyState>);

struct KeyState {
    keys: CapaKeys,
    /// The time at which this process received these keys.
    since: Instant,
}

impl fmt::Debug for CapaKeyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapaKeyring").field(&self.0.load().keys).finish()
    }
}

impl Default for CapaKeyring {
    fn default() -> CapaKeyring {
        CapaKeyring::new(CapaKeys::default())
    }
}

impl CapaKeyring {
    /// A ring with these keys.
    pub fn new(keys: CapaKeys) -> CapaKeyring {
        let since = Instant::now();
        CapaKeyring(ArcSwap::from_pointee(KeyState { keys, since }))
    }

    /// Replaces the keys.
    pub fn set(&self, keys: CapaKeys) {
        if self.0.load().keys != keys {
            let since = Instant::now();
            self.0.store(Arc::new(KeyState { keys, since }));
        }
    }

    /// The current set of keys.
    pub fn keys(&self) -> CapaKeys {
        self.0.load().keys.clone()
    }

    /// Checks the signature of a capability that this client sent to this target.
    ///
    /// # Errors
    ///
    /// As [`CapaKeys::check_signature`].
    pub fn check_signature(&self, scope: CapaScope<'_>, capa: &LustreCapa) -> Result<(), CapaError> {
        self.0.load().keys.check_signature(scope, capa)
    }

    /// Checks expiry and signature of a capability that this client sent to this target; `now` in
    /// seconds since 1970.
    ///
    /// # Errors
    ///
    /// As [`CapaKeys::check`].
    pub fn check(&self, scope: CapaScope<'_>, capa: &LustreCapa, now: u64) -> Result<(), CapaError> {
        self.0.load().keys.check(scope, capa, now)
    }

    /// Signs a capability for this client and this target. `None` if there is no key.
    pub fn sign(&self, scope: CapaScope<'_>, capa: LustreCapa) -> Option<LustreCapa> {
        let state = self.0.load();
        let [current, previous @ ..] = &state.keys.0[..] else {
            return None;
        };
        let key = match previous {
            [previous] if state.since.elapsed() < PREVIOUS_KEY_PERIOD => previous,
            _ => current,
        };
        let mut capa = LustreCapa {
            lc_flags: HMAC_SHA256,
            lc_keyid: key.id,
            ..capa
        };
        capa.lc_hmac = key.mac(scope, &capa).finalize().into_bytes().into();
        Some(capa)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::{CAPA_OPC_OSS_READ, CAPA_OPC_OSS_WRITE, Fid};

    const SCOPE: CapaScope<'_> = CapaScope {
        target: "fs-OST0000_UUID",
        client: "4f1a",
    };

    /// The keys after this number of rotations.
    fn keys(rotations: u32) -> CapaKeys {
        (1..=rotations).fold(CapaKeys::default(), |keys, id| keys.rotated([id as u8; KEY_LEN]))
    }

    fn capa() -> LustreCapa {
        LustreCapa {
            lc_fid: Fid::new(0x2_4000_0400, 7, 0),
            lc_opc: CAPA_OPC_OSS_READ,
            lc_expiry: 1000,
            ..LustreCapa::default()
        }
    }

    #[test]
    fn keys_round_trip_bad_text_is_refused_and_debug_hides_them() {
        let keys = keys(3);
        assert_eq!(keys.ids().collect::<Vec<_>>(), [3, 2]);
        assert_eq!(keys.to_text().parse(), Ok(keys.clone()));
        assert_eq!("".parse(), Ok(CapaKeys::default()));
        assert!(!format!("{keys:?} {:?}", CapaKeyring::new(keys.clone())).contains("0303"));
        let hex = "0".repeat(64);
        let bad = [
            format!("1:{}", &hex[1..]),
            format!("x:{hex}"),
            hex.clone(),
            format!("1:{hex} 2:{hex} 3:{hex}"),
        ];
        for bad in bad {
            assert!(bad.parse::<CapaKeys>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_capability_is_valid_only_unchanged_for_its_client_and_target_until_it_expires() {
        let ring = CapaKeyring::new(keys(1));
        let signed = ring.sign(SCOPE, capa()).unwrap();
        assert_eq!(ring.check(SCOPE, &signed, 1000), Ok(()));
        assert_eq!(ring.check(SCOPE, &signed, 1001), Err(CapaError::Expired(1)));
        let others = [
            CapaScope {
                client: "4f1b",
                ..SCOPE
            },
            CapaScope {
                target: "fs-OST0001_UUID",
                ..SCOPE
            },
            // The boundary between the names is signed, too.
            CapaScope {
                target: "fs-OST0000_UUID4",
                client: "f1a",
            },
        ];
        for other in others {
            assert_eq!(
                ring.check(other, &signed, 0),
                Err(CapaError::Signature),
                "{other:?}"
            );
        }
        let changed = [
            LustreCapa {
                lc_fid: Fid::new(0x2_4000_0400, 8, 0),
                ..signed
            },
            LustreCapa {
                lc_opc: CAPA_OPC_OSS_WRITE,
                ..signed
            },
            LustreCapa {
                lc_expiry: 2000,
                ..signed
            },
            LustreCapa {
                lc_timeout: 1,
                ..signed
            },
            LustreCapa {
                lc_hmac: [0; 32],
                ..signed
            },
        ];
        for changed in changed {
            assert_eq!(
                ring.check(SCOPE, &changed, 0),
                Err(CapaError::Signature),
                "{changed:?}"
            );
        }
        assert_eq!(CapaKeyring::default().sign(SCOPE, capa()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_previous_key_stays_valid_and_signs_for_a_while() {
        let ring = CapaKeyring::new(keys(1));
        let first = ring.sign(SCOPE, capa()).unwrap();
        ring.set(keys(2));
        assert_eq!(ring.sign(SCOPE, capa()).unwrap().lc_keyid, 1);
        tokio::time::advance(PREVIOUS_KEY_PERIOD).await;
        let second = ring.sign(SCOPE, capa()).unwrap();
        assert_eq!(second.lc_keyid, 2);
        assert_eq!(
            (ring.check(SCOPE, &first, 0), ring.check(SCOPE, &second, 0)),
            (Ok(()), Ok(()))
        );
        assert_eq!(keys(1).check(SCOPE, &second, 0), Err(CapaError::NewKey(2)));
        ring.set(keys(3));
        assert_eq!(ring.check(SCOPE, &first, 0), Err(CapaError::OldKey(1)));
        assert_eq!(ring.check(SCOPE, &second, 0), Ok(()));
    }
}
