//! Maps the identity that a client claims (`root_squash`, `nosquash_nids`, `enable_cap_mask`).
//!
//! The MDT accepts user and group ids as the client claims them. If root is squashed, a client's
//! root becomes another user, unless the client's NID is exempt. Other users have only the
//! capabilities that the administrator enables.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;
use wire::{Nid, NidList};

use crate::cred::{CAPABILITIES, Cred};

/// The settings; every request reads them.
#[derive(Debug, Default)]
pub(crate) struct Squash {
    /// The user and group ids of a squashed root, in the upper and the lower half. User 0: no
    /// squashing.
    root: AtomicU64,
    /// The capabilities accepted from users other than root.
    caps_of_users: AtomicU32,
    /// NIDs exempt from root_squash. Only requests of root take this lock, while root is squashed.
    exempt_nids: RwLock<NidList>,
}

impl Squash {
    /// The identity with which the MDT executes a request from `peer` that claims the identity
    /// `claimed`.
    pub(crate) fn apply(&self, claimed: Cred, peer: Nid) -> Cred {
        if claimed.fsuid != 0 {
            let cap = claimed.cap & self.caps_of_users.load(Ordering::Relaxed);
            return Cred { cap, ..claimed };
        }
        let (fsuid, fsgid) = self.root();
        match self.affects(peer) {
            true => squash_to(&claimed, fsuid, fsgid),
            false => claimed,
        }
    }

    /// Whether the root of this peer is squashed.
    pub(crate) fn affects(&self, peer: Nid) -> bool {
        self.root().0 != 0 && !self.exempt_nids.read().has(peer)
    }

    /// The user id and group id of a squashed root.
    fn root(&self) -> (u32, u32) {
        let packed = self.root.load(Ordering::Relaxed);
        ((packed >> 32) as u32, packed as u32)
    }

    /// The value of `root_squash`.
    pub(crate) fn show_root(&self) -> String {
        let (uid, gid) = self.root();
        format!("{uid}:{gid}")
    }

    /// Sets `root_squash`.
    pub(crate) fn set_root(&self, text: &str) -> Result<(), String> {
        let number = |s: &str| s.parse::<u32>().ok().filter(|n| *n != u32::MAX);
        let texts = text.trim().split_once(':');
        let ids = texts.and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)));
        let (uid, gid) = ids.ok_or("expected UID:GID, such as 65534:65534; 0:0 turns squashing off")?;
        self.root
            .store(u64::from(uid) << 32 | u64::from(gid), Ordering::Relaxed);
        Ok(())
    }

    /// The value of `nosquash_nids`.
    pub(crate) fn show_exempt_nids(&self) -> String {
        let list = self.exempt_nids.read();
        if list.is_empty() {
            "NONE".to_owned()
        } else {
            list.to_string()
        }
    }

    /// Sets `nosquash_nids`; `NONE` and `clear` are the empty list.
    pub(crate) fn set_exempt_nids(&self, text: &str) -> Result<(), String> {
        let list = match text.trim() {
            "NONE" | "clear" => NidList::default(),
            ranges => ranges.parse().map_err(|e: wire::WireError| e.to_string())?,
        };
        *self.exempt_nids.write() = list;
        Ok(())
    }

    /// The value of `enable_cap_mask`: names, or 0.
    pub(crate) fn show_caps(&self) -> String {
        let caps = self.caps_of_users.load(Ordering::Relaxed);
        let names = CAPABILITIES.iter().filter(|(_, cap)| caps & cap != 0);
        match names.map(|(name, _)| *name).collect::<Vec<_>>().join(",") {
            names if names.is_empty() => "0".to_owned(),
            names => names,
        }
    }

    /// Sets `enable_cap_mask`: a number, or names. If the first name has the prefix `+` or `-`,
    /// changes the present value: `+` adds a name, `-` removes it. A name without a prefix has the
    /// prefix of the name before.
    pub(crate) fn set_caps(&self, text: &str) -> Result<(), String> {
        let text = text.trim();
        let known = CAPABILITIES.iter().fold(0, |all, (_, cap)| all | cap);
        let digits = text.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
        if let Ok(mask) = digits.unwrap_or_else(|| text.parse()) {
            self.caps_of_users.store(mask as u32 & known, Ordering::Relaxed);
            return Ok(());
        }
        let changes = text.starts_with(['+', '-']);
        let mut caps = if changes {
            self.caps_of_users.load(Ordering::Relaxed)
        } else {
            0
        };
        let mut adds = true;
        for word in text.split([',', ' ']).filter(|w| !w.is_empty()) {
            let name = word.trim_start_matches(['+', '-']).to_lowercase();
            if changes && word.len() > name.len() {
                adds = word.starts_with('+');
            }
            let found = CAPABILITIES.iter().find(|(known, _)| *known == name);
            let (_, cap) = found.ok_or_else(|| {
                let names: Vec<_> = CAPABILITIES.iter().map(|(name, _)| *name).collect();
                format!("expected a number, or some of {}", names.join(","))
            })?;
            caps = if adds { caps | cap } else { caps & !cap };
        }
        self.caps_of_users.store(caps, Ordering::Relaxed);
        Ok(())
    }
}

/// A squashed identity: this user and group, no supplementary groups and no capabilities.
pub(crate) fn squash_to(claimed: &Cred, fsuid: u32, fsgid: u32) -> Cred {
    Cred {
        fsuid,
        fsgid,
        suppgids: [u32::MAX; 2],
        cap: 0,
        umask: claimed.umask,
        is_replay: claimed.is_replay,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Squash;
    use crate::cred::Cred;
    use wire::Nid;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    fn user(uid: u32) -> Cred {
        Cred {
            fsuid: uid,
            fsgid: uid,
            suppgids: [4, 5],
            cap: u32::MAX,
            umask: 0o22,
            ..Cred::default()
        }
    }

    #[test]
    fn root_is_squashed_unless_exempt() {
        let squash = Squash::default();
        assert_eq!(squash.show_root(), "0:0");
        assert_eq!(squash.apply(user(0), Nid::LO), user(0));
        squash.set_root("99:98\n").unwrap();
        squash.set_exempt_nids("10.0.0.*@tcp 0@lo").unwrap();
        let squashed = Cred {
            fsuid: 99,
            fsgid: 98,
            suppgids: [u32::MAX; 2],
            cap: 0,
            umask: 0o22,
            ..Cred::default()
        };
        assert_eq!(squash.apply(user(0), nid("10.0.1.1@tcp")), squashed);
        assert_eq!(squash.apply(user(0), nid("10.0.0.1@tcp")), user(0));
        assert_eq!(squash.apply(user(0), Nid::LO), user(0));
        // Other users are not mapped.
        assert_eq!(squash.apply(user(7), nid("10.0.1.1@tcp")).fsuid, 7);
        squash.set_exempt_nids("NONE").unwrap();
        assert_eq!(squash.apply(user(0), Nid::LO), squashed);
        assert_eq!(
            (squash.show_root(), squash.show_exempt_nids()),
            ("99:98".into(), "NONE".into())
        );
        for wrong in ["", "99", "99:", "a:b", "-1:0", "1:2:3", "4294967295:0"] {
            assert!(squash.set_root(wrong).is_err(), "{wrong}");
        }
        assert!(squash.set_exempt_nids("10.0.0.1@nothing").is_err());
        assert_eq!(squash.show_root(), "99:98");
    }

    #[test]
    fn users_have_only_enabled_capabilities() {
        let squash = Squash::default();
        let caps = |uid| squash.apply(user(uid), Nid::LO).cap;
        assert_eq!((caps(7), caps(0)), (0, u32::MAX));
        squash.set_caps("+cap_chown,cap_fowner").unwrap();
        assert_eq!(
            (squash.show_caps(), caps(7)),
            ("cap_chown,cap_fowner".into(), 0b1001)
        );
        squash.set_caps("-cap_chown").unwrap();
        assert_eq!(squash.show_caps(), "cap_fowner");
        squash.set_caps("cap_mknod").unwrap();
        assert_eq!(squash.show_caps(), "cap_mknod");
        squash.set_caps("0x3").unwrap();
        assert_eq!(squash.show_caps(), "cap_chown,cap_dac_override");
        assert!(squash.set_caps("cap_unheard_of").is_err());
        squash.set_caps("0").unwrap();
        assert_eq!((squash.show_caps(), caps(7)), ("0".into(), 0));
    }
}
