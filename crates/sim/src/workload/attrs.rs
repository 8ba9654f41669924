//! Calls on attributes and extended attributes.

use std::collections::BTreeSet;
use std::sync::Arc;

use client::{Cred, FoundFile, OpenFile, SetAttr, SetTime};
use wire::{Errno, Fid, Time};

use super::Workload;
use crate::attrs::{Acl, Condition, PermCall, XattrCall, XattrOutcome};
use crate::history::{Call, Outcome, Stat};
use crate::names::Kind;

/// The extended attributes that calls use.
const XATTRS: [&[u8]; 4] = [b"user.one", b"user.two", b"trusted.three", b"security.four"];
/// Index of the first attribute that all types of files accept. The earlier ones (`user.*`) are
/// only for regular files and directories.
const XATTRS_OF_ALL: u8 = 2;
/// The access ACL.
const ACL: &[u8] = b"system.posix_acl_access";
/// Programs set only times before this one, and the clocks are always after it; seconds since 1970.
const SET_TIMES_END: u64 = 1_500_000_000;
/// The largest number of words in a value of an extended attribute.
const XATTR_WORDS_MAX: u64 = 200;

/// The bytes of a value of an extended attribute. Its length depends on the value.
fn xattr_bytes(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(1 + (value % XATTR_WORDS_MAX) as usize)
}

/// The value of an extended attribute; `None` if no call sets such bytes.
fn xattr_value(bytes: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    (xattr_bytes(value) == bytes).then_some(value)
}

/// The attributes that the checks compare.
fn stat_of(found: &FoundFile) -> Stat {
    let attr = &found.attr;
    let seconds = u64::try_from(attr.mtime.sec).unwrap_or_default();
    Stat {
        is_dir: attr.is_dir(),
        mode: attr.mode & 0o7777,
        owner: (attr.uid, attr.gid),
        links: attr.nlink,
        size: attr.size,
        mtime: (seconds < SET_TIMES_END).then_some(seconds),
    }
}

impl Workload {
    /// Uses the attributes of an open file, a directory, or the file of the last lookup.
    pub(super) async fn use_attributes(&mut self) {
        let (fid, kind, file) = match (self.rng.u8(0..8), self.rng.choice(&self.files), self.found) {
            (0..5, Some(file), _) => (file.fid, Kind::File, Some(file.clone())),
            (5..7, _, Some((fid, kind))) => (fid, kind, None),
            _ => (self.dirs[self.rng.usize(..self.dirs.len())], Kind::Dir, None),
        };
        if matches!(kind, Kind::Symlink(_)) {
            return self.stat(fid).await;
        }
        let mode = self.rng.u32(0..0o1000);
        match self.rng.u8(0..20) {
            0..6 => self.stat(fid).await,
            6..8 => self.change_perm(fid, file, PermCall::Chmod(mode)).await,
            8 => {
                let (uid, gid) = (self.rng.u32(0..4), self.rng.u32(0..4));
                self.change_perm(fid, file, PermCall::Chown(uid, gid)).await;
            }
            9 => {
                let acl = Acl {
                    user: self.rng.u32(1000..1003),
                    perm: self.rng.u16(0..8),
                    group: self.rng.u16(0..8),
                };
                self.change_perm(fid, file, PermCall::SetAcl(acl, mode)).await;
            }
            10 => self.change_perm(fid, file, PermCall::RemoveAcl).await,
            11 => self.get_acl(fid).await,
            12 => {
                let time = self.rng.u64(1_000_000_000..SET_TIMES_END);
                self.set_time(fid, file, time).await;
            }
            13 => self.statfs().await,
            _ => self.use_xattr(fid, kind).await,
        }
    }

    /// Reads all attributes of a file.
    pub(super) async fn read_attributes(&self, fid: Fid, kind: Kind) {
        self.stat(fid).await;
        if matches!(kind, Kind::Symlink(_)) {
            return;
        }
        self.get_acl(fid).await;
        self.xattr(fid, 0, XattrCall::List).await;
        for number in 0..XATTRS.len() as u8 {
            self.xattr(fid, number, XattrCall::Get).await;
        }
    }

    async fn stat(&self, fid: Fid) {
        let work = async {
            match self.client.getattr(&Cred::root(), fid).await {
                Ok(found) => Outcome::Stat(stat_of(&found)),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Stat(fid), work).await;
    }

    async fn change_perm(&self, fid: Fid, file: Option<Arc<OpenFile>>, call: PermCall) {
        let cred = Cred::root();
        let set = async |set: SetAttr| {
            let done = self.client.setattr(&cred, fid, &set, file.as_ref()).await;
            done.map(drop)
        };
        let work = async {
            let changed = match call {
                PermCall::Chmod(mode) => {
                    let mode = Some(mode);
                    set(SetAttr {
                        mode,
                        ..SetAttr::default()
                    })
                    .await
                }
                PermCall::Chown(uid, gid) => {
                    let (uid, gid) = (Some(uid), Some(gid));
                    set(SetAttr {
                        uid,
                        gid,
                        ..SetAttr::default()
                    })
                    .await
                }
                PermCall::SetAcl(acl, mode) => {
                    let value = acl.encode(mode);
                    self.client.setxattr(&cred, fid, ACL, &value, 0).await
                }
                PermCall::RemoveAcl => self.client.removexattr(&cred, fid, ACL).await,
                // Reads are recorded as other calls.
                PermCall::Stat(..) | PermCall::GetAcl(_) => Ok(()),
            };
            match changed {
                Ok(()) => Outcome::Done,
                Err(Errno::ENODATA) => Outcome::Acl(None),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Perm(fid, call), work).await;
    }

    async fn get_acl(&self, fid: Fid) {
        let work = async {
            match self.client.getxattr(&Cred::root(), fid, ACL).await {
                Ok(bytes) => match Acl::decode(&bytes) {
                    Some(found) => Outcome::Acl(Some(found)),
                    None => Outcome::Wrong(format!("no call has set this ACL: {bytes:02x?}")),
                },
                Err(Errno::ENODATA) => Outcome::Acl(None),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::GetAcl(fid), work).await;
    }

    async fn set_time(&self, fid: Fid, file: Option<Arc<OpenFile>>, time: u64) {
        let set = SetAttr {
            mtime: Some(SetTime::At(Time::new(time as i64, 0))),
            ..SetAttr::default()
        };
        let work = async {
            let cred = Cred::root();
            match self.client.setattr(&cred, fid, &set, file.as_ref()).await {
                Ok(_) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::SetTime(fid, time), work).await;
    }

    async fn statfs(&self) {
        let work = async {
            match self.client.statfs().await {
                Ok(space) if space.bavail > space.bfree || space.bfree > space.blocks => {
                    Outcome::Wrong(format!(
                        "{} blocks are free, {} of them for users, of {}",
                        space.bfree, space.bavail, space.blocks
                    ))
                }
                Ok(space) if space.ffree > space.files => {
                    Outcome::Wrong(format!("{} inodes are free of {}", space.ffree, space.files))
                }
                Ok(_) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Statfs, work).await;
    }

    async fn use_xattr(&mut self, fid: Fid, kind: Kind) {
        let first = match kind {
            Kind::File | Kind::Dir => 0,
            _ => XATTRS_OF_ALL,
        };
        let number = self.rng.u8(first..XATTRS.len() as u8);
        let value = self.rng.u64(..);
        let call = match self.rng.u8(0..10) {
            0 | 1 => XattrCall::Set(Condition::Always, value),
            2 => XattrCall::Set(Condition::Missing, value),
            3 => XattrCall::Set(Condition::Present, value),
            4 => XattrCall::Remove,
            5 | 6 => XattrCall::List,
            _ => XattrCall::Get,
        };
        self.xattr(fid, number, call).await;
    }

    async fn xattr(&self, fid: Fid, number: u8, call: XattrCall) {
        let (cred, name) = (Cred::root(), XATTRS[usize::from(number)]);
        let changed = |result: Result<(), Errno>| match result {
            Ok(()) => Outcome::Xattr(XattrOutcome::Done),
            Err(errno @ (Errno::EEXIST | Errno::ENODATA)) => Outcome::Xattr(XattrOutcome::Failed(errno)),
            Err(errno) => Outcome::Failed(errno),
        };
        let work = async {
            match call {
                XattrCall::Set(condition, value) => {
                    let flags = match condition {
                        Condition::Always => 0,
                        Condition::Missing => libc::XATTR_CREATE,
                        Condition::Present => libc::XATTR_REPLACE,
                    };
                    let value = xattr_bytes(value);
                    changed(self.client.setxattr(&cred, fid, name, &value, flags as u32).await)
                }
                XattrCall::Remove => changed(self.client.removexattr(&cred, fid, name).await),
                XattrCall::Get => match self.client.getxattr(&cred, fid, name).await {
                    Ok(bytes) => match xattr_value(&bytes) {
                        Some(value) => Outcome::Xattr(XattrOutcome::Value(Some(value))),
                        None => Outcome::Wrong(format!("no call has set this value: {bytes:02x?}")),
                    },
                    Err(Errno::ENODATA) => Outcome::Xattr(XattrOutcome::Value(None)),
                    Err(errno) => Outcome::Failed(errno),
                },
                XattrCall::List => match self.client.listxattr(&cred, fid).await {
                    Ok(list) => listed(&list),
                    Err(errno) => Outcome::Failed(errno),
                },
            }
        };
        self.history
            .call(self.id, Call::Xattr(fid, number, call), work)
            .await;
    }
}

/// The numbers of the attributes in a list.
fn listed(list: &[u8]) -> Outcome {
    let mut numbers = BTreeSet::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match XATTRS.iter().position(|known| *known == name) {
            Some(number) if numbers.insert(number as u8) => {}
            _ if name == ACL => {}
            _ => return Outcome::Wrong(format!("unknown or twice: {}", name.escape_ascii())),
        }
    }
    Outcome::Xattrs(numbers)
}
