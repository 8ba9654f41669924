//! Object capabilities: the keys that the MGS shares with the registered targets, and what a target signs with them.
//!
//! A metadata target signs a [`LustreCapa`] for one object, one object target and one client. An object target that
//! requires capabilities checks the signature with its own copy of the key. The keys never travel to clients.
//!
//! The MGS keeps two keys: the current one, and the one before it, so that what was signed with that one stays good while
//! clients get new capabilities.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::time::Instant;
use wire::{LustreCapa, WireStruct};

/// Bytes of a key.
const KEY: usize = 32;
/// Keys at a time: the current one and the one before.
const KEYS_MAX: usize = 2;
/// Tells these signatures from any other use of a key.
const PURPOSE: &[u8] = b"nacre: object capability, 1\0";
/// Bytes of a capability that are signed: all before the signature.
const SIGNED: usize = LustreCapa::SIZE - 64;
/// `lc_flags`: the signature is an HMAC-SHA256. Lustre's own was an HMAC-SHA1, whose number is 1.
const HMAC_SHA256: u32 = 2 << 24;
/// For so long a new key is only checked, not signed with, where there is an older one: an object target may learn of it
/// later than a metadata target.
const SETTLE: Duration = Duration::from_secs(30);

/// A key and its number.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    id: u32,
    bytes: [u8; KEY],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, secret)", self.id)
    }
}

/// The keys of a file system's targets, the current one first. Written as text: `ID:HEX ID:HEX`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapaKeys(Vec<Key>);

/// Whom a capability is for, and where it is shown.
#[derive(Debug, Clone, Copy)]
pub struct Bearer<'a> {
    /// The UUID of the object target.
    pub target: &'a str,
    /// The UUID of the client.
    pub client: &'a str,
}

/// Why a capability is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CapaError {
    /// It was signed with a key that is newer than all keys here.
    #[error("it was signed with key {0}, which this target has not read from the MGS yet")]
    NewKey(u32),
    /// It was signed with a key that does not count any more.
    #[error("it was signed with key {0}, which was replaced")]
    OldKey(u32),
    /// Another client, another target, or no metadata target made it.
    #[error("its signature is wrong")]
    Signature,
    /// Its time is over.
    #[error("it expired {0} s ago by this server's clock")]
    Expired(u64),
}

impl CapaKeys {
    /// Replaces the oldest key by a new one of these bytes, which are to be random.
    pub fn rotated(&self, random: [u8; KEY]) -> CapaKeys {
        let id = self.0.first().map_or(0, |key| key.id).wrapping_add(1).max(1);
        let mut keys = vec![Key { id, bytes: random }];
        keys.extend(self.0.iter().take(KEYS_MAX - 1).cloned());
        CapaKeys(keys)
    }

    /// The numbers of the keys, the current one first.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|key| key.id)
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys as they stand in a file and in the MGS's log.
    pub fn to_text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let keys = self.0.iter().map(|key| format!("{}:{}", key.id, hex(&key.bytes)));
        keys.collect::<Vec<_>>().join(" ")
    }

    /// Checks the signature of a capability that this client shows to this target.
    pub fn check_signature(&self, of: Bearer<'_>, capa: &LustreCapa) -> Result<(), CapaError> {
        let Some(key) = self.0.iter().find(|key| key.id == capa.lc_keyid) else {
            let newest = self.0.first().map_or(0, |key| key.id);
            return Err(match capa.lc_keyid > newest {
                true => CapaError::NewKey(capa.lc_keyid),
                false => CapaError::OldKey(capa.lc_keyid),
            });
        };
        let signed = key.mac(of, capa).verify_slice(&capa.lc_hmac);
        signed.map_err(|_| CapaError::Signature)
    }

    /// The same, and that it has not expired; `now` in seconds since 1970.
    pub fn check(&self, of: Bearer<'_>, capa: &LustreCapa, now: u64) -> Result<(), CapaError> {
        // First, so that nobody waits for a key longer than the capability would be good.
        match now.checked_sub(capa.lc_expiry.into()) {
            None | Some(0) => self.check_signature(of, capa),
            Some(late) => Err(CapaError::Expired(late)),
        }
    }
}

impl Key {
    fn mac(&self, of: Bearer<'_>, capa: &LustreCapa) -> Hmac<Sha256> {
        // HMAC fills a key up with zeros to the block of its hash; filled up already it always fits.
        let mut block = [0; 64];
        block[..KEY].copy_from_slice(&self.bytes);
        let mut mac = <Hmac<Sha256> as Mac>::new(&block.into());
        mac.update(PURPOSE);
        for name in [of.target, of.client] {
            mac.update(&(name.len() as u64).to_le_bytes());
            mac.update(name.as_bytes());
        }
        mac.update(&capa.to_bytes()[..SIGNED]);
        mac
    }
}

impl FromStr for CapaKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<CapaKeys, String> {
        let bad = || {
            format!(
                "expected up to {KEYS_MAX} keys, ID:HEX each, with {} digits",
                2 * KEY
            )
        };
        let key = |word: &str| {
            let (id, hex) = word.split_once(':')?;
            let (id, hex) = (id.parse().ok()?, hex.as_bytes());
            let mut bytes = [0; KEY];
            if hex.len() != 2 * KEY {
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

/// The keys that a target has, as they change.
pub struct CapaKeyring(ArcSwap<Known>);

/// The keys, and since when this process has known the current one.
struct Known {
    keys: CapaKeys,
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
    /// A ring of these keys.
    pub fn new(keys: CapaKeys) -> CapaKeyring {
        let since = Instant::now();
        CapaKeyring(ArcSwap::from_pointee(Known { keys, since }))
    }

    /// Replaces the keys.
    pub fn set(&self, keys: CapaKeys) {
        if self.0.load().keys != keys {
            let since = Instant::now();
            self.0.store(Arc::new(Known { keys, since }));
        }
    }

    /// The keys to check with.
    pub fn keys(&self) -> CapaKeys {
        self.0.load().keys.clone()
    }

    /// Checks the signature of a capability that this client shows to this target.
    pub fn check_signature(&self, of: Bearer<'_>, capa: &LustreCapa) -> Result<(), CapaError> {
        self.0.load().keys.check_signature(of, capa)
    }

    /// Checks a capability that this client shows to this target; `now` in seconds since 1970.
    pub fn check(&self, of: Bearer<'_>, capa: &LustreCapa, now: u64) -> Result<(), CapaError> {
        self.0.load().keys.check(of, capa, now)
    }

    /// Signs a capability for this client and this target. `None`: there is no key.
    pub fn sign(&self, of: Bearer<'_>, capa: LustreCapa) -> Option<LustreCapa> {
        let known = self.0.load();
        let [current, before @ ..] = &known.keys.0[..] else {
            return None;
        };
        let key = match before {
            [before] if known.since.elapsed() < SETTLE => before,
            _ => current,
        };
        let mut capa = LustreCapa {
            lc_flags: HMAC_SHA256,
            lc_keyid: key.id,
            ..capa
        };
        capa.lc_hmac = key.mac(of, &capa).finalize().into_bytes().into();
        Some(capa)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::{CAPA_OPC_OSS_READ, CAPA_OPC_OSS_WRITE, Fid};

    const OF: Bearer<'_> = Bearer {
        target: "fs-OST0000_UUID",
        client: "4f1a",
    };

    fn keys(ids: u32) -> CapaKeys {
        (1..=ids).fold(CapaKeys::default(), |keys, id| keys.rotated([id as u8; KEY]))
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
    fn keys_are_read_back_as_written_and_not_shown() {
        let two = keys(3);
        assert_eq!(two.ids().collect::<Vec<_>>(), [3, 2]);
        assert_eq!(two.to_text().parse(), Ok(two.clone()));
        assert_eq!("".parse(), Ok(CapaKeys::default()));
        assert!(!format!("{two:?} {:?}", CapaKeyring::new(two.clone())).contains("0303"));
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
    async fn a_capability_holds_for_one_client_one_target_and_what_it_says() {
        let ring = CapaKeyring::new(keys(1));
        let signed = ring.sign(OF, capa()).unwrap();
        assert_eq!(ring.check(OF, &signed, 1000), Ok(()));
        assert_eq!(ring.check(OF, &signed, 1001), Err(CapaError::Expired(1)));
        let others = [
            Bearer { client: "4f1b", ..OF },
            Bearer {
                target: "fs-OST0001_UUID",
                ..OF
            },
            // The boundary between the names is signed, too.
            Bearer {
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
                ring.check(OF, &changed, 0),
                Err(CapaError::Signature),
                "{changed:?}"
            );
        }
        assert_eq!(CapaKeyring::default().sign(OF, capa()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_former_key_stays_good_and_signs_until_all_targets_have_the_new_one() {
        let ring = CapaKeyring::new(keys(1));
        let first = ring.sign(OF, capa()).unwrap();
        ring.set(keys(2));
        assert_eq!(ring.sign(OF, capa()).unwrap().lc_keyid, 1);
        tokio::time::advance(SETTLE).await;
        let second = ring.sign(OF, capa()).unwrap();
        assert_eq!(second.lc_keyid, 2);
        assert_eq!(
            (ring.check(OF, &first, 0), ring.check(OF, &second, 0)),
            (Ok(()), Ok(()))
        );
        assert_eq!(keys(1).check(OF, &second, 0), Err(CapaError::NewKey(2)));
        ring.set(keys(3));
        assert_eq!(ring.check(OF, &first, 0), Err(CapaError::OldKey(1)));
        assert_eq!(ring.check(OF, &second, 0), Ok(()));
    }
}
