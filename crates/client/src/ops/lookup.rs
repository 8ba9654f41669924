//! Lookup of names and attributes: from the cache where locks cover them, else by an intent, which
//! requests a lock too.

use super::found::{FoundFile, SizeWait};
use super::name_dir::{NameDir, Resolved};
use crate::attr::{MdAttr, Striping};
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::{ATTR_BITS, Child};
use crate::mdc::{IntentReply, IntentRequest, Mdc};
use crate::pack;
use crate::stats::Operation;
use bytes::Bytes;
use ldlm::LockCookie;
use ldlm::{LockMode, LockRef};
use wire::{
    DOT_LUSTRE_NAME, Errno, Fid, INODELOCK_UNWRITTEN, IT_GETATTR, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP,
    MDS_INODELOCK_UPDATE, OBD_MD_DEFAULT_MEA, OBD_MD_FLACL, OBD_MD_FLBTIME, OBD_MD_FLCROSSREF,
    OBD_MD_FLDIREA, OBD_MD_FLEASIZE, OBD_MD_FLGETATTR, OBD_MD_FLID, OBD_MD_FLMODEASIZE, OBD_MD_MEA,
    WireStruct, nul_terminated,
};

/// Largest length of a name, in bytes.
const NAME_MAX: usize = 255;
/// Largest number of attempts of a lookup. An attempt fails if another client removes the found
/// file before this client has the attributes.
const LOOKUP_ATTEMPTS: usize = 16;

/// The attributes to request from the metadata target, as bits of `mbo_valid`.
pub(crate) const GETATTR: u64 = OBD_MD_FLGETATTR
    | OBD_MD_FLBTIME
    | OBD_MD_FLEASIZE
    | OBD_MD_FLMODEASIZE
    | OBD_MD_FLDIREA
    | OBD_MD_MEA
    | OBD_MD_DEFAULT_MEA
    | OBD_MD_FLACL
    | OBD_MD_FLID;

/// Checks that a name is valid: 1 to 255 bytes, no `/`, no NUL.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        b"" => Err(Errno::ENOENT),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// How a getattr names the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GetattrBy {
    /// By its FID.
    Fid,
    /// By its FID, after another target has returned the FID for a name.
    RemoteName,
    /// As a stripe of a directory.
    Stripe,
}

/// Whether a listing of the directory would show the name if it existed. A listing never shows
/// `.lustre`, nor FIDs in `.lustre/fid`.
fn is_listed(dir: Fid, name: &[u8]) -> bool {
    dir != Fid::DOT_LUSTRE_FID && (dir != Fid::ROOT || name != DOT_LUSTRE_NAME.as_bytes())
}

/// The intent to look up a name, with its file's attributes and a lock.
pub(super) fn lookup_request(
    mdc: &Mdc,
    cred: &Cred,
    parent: Fid,
    name: &[u8],
    suppgid: u32,
) -> IntentRequest {
    let mut body = pack::body(cred, parent, Fid::ZERO, GETATTR, suppgid);
    body.mbo_eadatasize = mdc.import.connect_data().ocd_max_easize;
    let bufs = vec![body.to_bytes(), Bytes::new(), nul_terminated(name), Bytes::new()];
    IntentRequest::new(parent, LockMode::Cr, MDS_INODELOCK_UPDATE, IT_GETATTR, bufs)
}

impl Client {
    /// Looks up a name in a directory.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no such name; `ENAMETOOLONG` or `EINVAL`: an invalid name; or an error of a server
    /// such as `EACCES`.
    pub async fn lookup(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<FoundFile, Errno> {
        check_name(name)?;
        for _ in 0..LOOKUP_ATTEMPTS {
            let mut resolved = self.resolve_name(cred, parent, name).await?;
            let found = async {
                let md = self.md_of_resolved(cred, &mut resolved).await?;
                self.found_by_name(cred, resolved.fid, md, (&resolved.dir, name))
                    .await
            };
            match found.await {
                // The file was removed meanwhile. The name may lead to another file by now
                // (rename), so the client looks the name up again.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                found => return found,
            }
        }
        Err(Errno::ESTALE)
    }

    /// The file of a name, and its attributes if the reply had them.
    pub(crate) async fn resolve_name(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
    ) -> Result<Resolved<'_>, Errno> {
        let mut dirs = self.dirs_of_name(cred, parent, name).await?;
        let mut next = dirs.next().await?;
        while let Some(dir) = next {
            let result = self.resolve_in(cred, &dir, name).await;
            next = match &result {
                Err(Errno::ENOENT) => dirs.next().await?,
                _ => None,
            };
            if next.is_none() {
                return result;
            }
        }
        Err(Errno::ENOENT)
    }

    /// The file of a name in this directory or stripe.
    pub(super) async fn resolve_in<'c>(
        &self,
        cred: &Cred,
        dir: &NameDir<'c>,
        name: &[u8],
    ) -> Result<Resolved<'c>, Errno> {
        let (mdc, parent) = (dir.mdc, dir.fid);
        let resolved = |fid, md, is_remote| Resolved {
            fid,
            md,
            is_remote,
            dir: *dir,
        };
        if let Some(Child::File(fid)) = self.inodes.child(parent, name)
            && mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP).is_some()
        {
            return Ok(resolved(fid, None, false));
        }
        let is_listed = is_listed(dir.shown, name);
        if let Some(cookie) = self.inodes.absence_lock(parent, name).filter(|_| is_listed)
            && self.update_cookie(mdc, parent) == Some(cookie)
        {
            return Err(Errno::ENOENT);
        }
        let cookie_before = self.update_cookie(mdc, parent);
        let suppgid = self.suppgid(cred, dir.shown).await;
        let reply = mdc
            .intent(lookup_request(mdc, cred, parent, name, suppgid))
            .await?;
        reply.status?;
        if reply.is_negative() {
            // Cached only if the client held the directory's UPDATE lock without interruption.
            if let Some(cookie) = cookie_before.filter(|_| is_listed)
                && self.update_cookie(mdc, parent) == Some(cookie)
            {
                let list_from = self.inodes.add_negative(parent, name, cookie, reply.sent_at);
                if let Some(from) = list_from {
                    self.list_more_names(cred, dir, cookie, from).await;
                }
            }
            return Err(Errno::ENOENT);
        }
        let fid = reply.body.mbo_fid1;
        if reply.is_elsewhere() {
            self.cache_name(&reply, (parent, name));
            return Ok(resolved(fid, None, true));
        }
        let md = self.cache_reply(&reply, Some((parent, name)));
        Ok(resolved(fid, Some(md), false))
    }

    /// The attributes of a file that was found by name.
    pub(crate) async fn md_of_resolved(
        &self,
        cred: &Cred,
        resolved: &mut Resolved<'_>,
    ) -> Result<MdAttr, Errno> {
        match resolved.md.take() {
            Some(md) => Ok(md),
            None if resolved.is_remote => self.md_by(cred, resolved.fid, GetattrBy::RemoteName).await,
            None => self.md(cred, resolved.fid).await,
        }
    }

    /// The attributes of a file. For a removed directory that is open on this mount, the last known
    /// attributes.
    ///
    /// # Errors
    ///
    /// `ENOENT` or `ESTALE`: the file was removed; or an error of a server.
    pub async fn getattr(&self, cred: &Cred, fid: Fid) -> Result<FoundFile, Errno> {
        self.getattr_with(cred, fid, SizeWait::Full).await
    }

    /// As [`Client::getattr`], without a long wait for the object targets: the size may be missing
    /// ([`FoundFile::size_known`]).
    ///
    /// # Errors
    ///
    /// As [`Client::getattr`].
    pub async fn getattr_promptly(&self, cred: &Cred, fid: Fid) -> Result<FoundFile, Errno> {
        self.getattr_with(cred, fid, SizeWait::Brief).await
    }

    pub(super) async fn getattr_with(
        &self,
        cred: &Cred,
        fid: Fid,
        size_wait: SizeWait,
    ) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Getattr);
        let md = match self.md(cred, fid).await {
            Err(e @ (Errno::ENOENT | Errno::ESTALE)) => {
                return self
                    .open_dirs
                    .attr_of_removed(fid)
                    .map(FoundFile::uncached)
                    .ok_or(e);
            }
            md => md?,
        };
        let found = self.with_data(cred, fid, md, None, size_wait).await?;
        if found.attr.is_dir() {
            self.open_dirs.update(&found.attr);
        }
        Ok(found)
    }

    /// The metadata target's attributes of a file: cached, or requested with a lock.
    pub(crate) async fn md(&self, cred: &Cred, fid: Fid) -> Result<MdAttr, Errno> {
        self.md_by(cred, fid, GetattrBy::Fid).await
    }

    /// As [`Client::md`], with the form of the request.
    pub(super) async fn md_by(&self, cred: &Cred, fid: Fid, by: GetattrBy) -> Result<MdAttr, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        if let Some(md) = self.cached_md(mdc, fid) {
            return Ok(md);
        }
        let (fid2, flags) = match by {
            GetattrBy::Fid => (fid, 0),
            GetattrBy::RemoteName => (Fid::ZERO, OBD_MD_FLCROSSREF),
            GetattrBy::Stripe => (fid, OBD_MD_FLCROSSREF),
        };
        let mut body = pack::body(cred, fid, fid2, GETATTR | flags, crate::cred::NO_GROUP);
        body.mbo_eadatasize = mdc.import.connect_data().ocd_max_easize;
        let bufs = vec![body.to_bytes(), Bytes::new(), nul_terminated(b""), Bytes::new()];
        let reply = mdc
            .intent(IntentRequest::new(
                fid,
                LockMode::Cr,
                MDS_INODELOCK_UPDATE,
                IT_GETATTR,
                bufs,
            ))
            .await?;
        reply.status?;
        if reply.is_negative() {
            return Err(Errno::ESTALE);
        }
        Ok(self.cache_reply(&reply, None))
    }

    /// The cached attributes of a file, if a lock covers them.
    pub(super) fn cached_md(&self, mdc: &Mdc, fid: Fid) -> Option<MdAttr> {
        let _held = self.attr_lock(mdc, fid)?;
        self.inodes.get(fid)?.state.lock().md.clone()
    }

    fn attr_lock(&self, mdc: &Mdc, fid: Fid) -> Option<LockRef> {
        mdc.find(fid, LockMode::Pr, ATTR_BITS)
    }

    fn update_cookie(&self, mdc: &Mdc, dir: Fid) -> Option<LockCookie> {
        mdc.find(dir, LockMode::Pr, MDS_INODELOCK_UPDATE)
            .map(|lock| lock.info().cookie)
    }

    /// Caches a name if another metadata target has its file: the reply has a LOOKUP lock on the
    /// file, from the target that has the name.
    pub(super) fn cache_name(&self, reply: &IntentReply, (parent, name): (Fid, &[u8])) {
        let Some(lock) = &reply.lock else { return };
        let info = lock.info();
        let fid = Fid::from_res_id(&info.res);
        if fid == reply.body.mbo_fid1 && info.policy.bits() & MDS_INODELOCK_LOOKUP != 0 {
            self.inodes.note_parent(fid, parent);
            self.inodes.add_name(parent, name, fid);
        }
    }

    /// Caches the attributes, the layout and the name from an intent's reply, and marks a created
    /// file as unwritten, each only if the reply's lock covers it. Returns the attributes.
    pub(crate) fn cache_reply(&self, reply: &IntentReply, name: Option<(Fid, &[u8])>) -> MdAttr {
        let md = reply.md();
        let Some(lock) = reply.lock.as_ref().filter(|lock| {
            let locked = Fid::from_res_id(&lock.info().res);
            locked == reply.body.mbo_fid1
        }) else {
            if md.striping != Striping::None {
                self.inodes.note_unknown_striped();
            }
            return md;
        };
        let info = lock.info();
        let (fid, bits) = (Fid::from_res_id(&info.res), info.policy.bits());
        {
            let inode = self.inodes.entry(fid);
            let mut state = inode.state.lock();
            if md.attr.is_dir() {
                self.inodes.note_striping(&mut state, &md.striping);
            }
            let covers_layout = bits & MDS_INODELOCK_LAYOUT != 0;
            if covers_layout && let Some(layout) = &md.layout {
                state.layout = Some(layout.clone());
            }
            let dir_unchanged = !md.attr.is_dir() || state.unchanged_since(reply.sent_at);
            if bits & ATTR_BITS == ATTR_BITS && info.mode.covers(LockMode::Pr) && dir_unchanged {
                state.md = Some(MdAttr {
                    layout: md.layout.clone().filter(|_| covers_layout),
                    ..md.clone()
                });
                state.has_first_attrs |= reply.created_file();
            }
            state.unwritten |= bits & INODELOCK_UNWRITTEN != 0 && reply.created_file();
        }
        if let Some(locked) = reply.locked_data()
            && let Some(layout) = &md.layout
        {
            self.lov.take_locked(fid, layout, &locked);
        }
        if md.attr.is_dir() {
            match name {
                Some((parent, _)) => self.inodes.note_parent(fid, parent),
                None if fid.is_root() => {
                    *self.lmv.root_default.write() = md.default_dir_layout.clone();
                }
                None => {}
            }
        }
        if bits & MDS_INODELOCK_LOOKUP != 0
            && let Some((parent, name)) = name
        {
            self.inodes.add_name(parent, name, fid);
        }
        md
    }

    /// The supplementary group that a request about a file carries ([`crate::perm::suppgid`]).
    pub(crate) async fn suppgid(&self, cred: &Cred, fid: Fid) -> u32 {
        self.group_by(cred, fid, |md| crate::perm::suppgid(cred, md))
            .await
    }

    /// The file's group if it is a supplementary group of the caller, else `NO_GROUP`.
    pub(crate) async fn file_group(&self, cred: &Cred, fid: Fid) -> u32 {
        self.group_by(cred, fid, |md| cred.suppgid(md.attr.gid)).await
    }

    /// The group that `choose` returns for the file's attributes. `NO_GROUP` for the superuser, for
    /// the zero FID, and if the attributes are not available.
    async fn group_by(&self, cred: &Cred, fid: Fid, choose: impl FnOnce(&MdAttr) -> u32) -> u32 {
        if cred.uid == 0 || fid.is_zero() {
            return crate::cred::NO_GROUP;
        }
        let md = match self.inodes.permission_attr(fid) {
            Some(md) => Some(md),
            None => self.md(cred, fid).await.ok(),
        };
        md.map_or(crate::cred::NO_GROUP, |md| choose(&md))
    }
}

#[cfg(test)]
mod tests {
    use super::check_name;
    use wire::Errno;

    #[test]
    fn names_that_are_empty_or_too_long_or_contain_slash_or_nul_are_rejected() {
        assert_eq!(check_name(b"a"), Ok(()));
        assert_eq!(check_name(&[b'a'; 255]), Ok(()));
        assert_eq!(check_name(&[b'a'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(check_name(b"a/b"), Err(Errno::EINVAL));
        assert_eq!(check_name(b"a\0"), Err(Errno::EINVAL));
        assert_eq!(check_name(b""), Err(Errno::ENOENT));
    }
}
