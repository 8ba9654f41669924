//! Lookup of names and attributes: from the cache where locks cover them, else by an intent, which
//! requests a lock too.

use crate::attr::{Attr, DataAttr, MdAttr};
use crate::client::Client;
use crate::cred::Cred;
use crate::data::DataFile;
use crate::inode::{ATTR_BITS, Child};
use crate::mdc::{IntentReply, IntentRequest, Mdc};
use crate::owner::KERNEL_WAIT_MAX;
use crate::pack;
use crate::stats::Operation;
use bytes::Bytes;
use ldlm::LockCookie;
use ldlm::{LockMode, LockRef};
use std::sync::Arc;
use wire::{
    DOT_LUSTRE_NAME, Errno, Fid, IT_GETATTR, MDS_INODELOCK_DOM, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP,
    MDS_INODELOCK_UPDATE, OBD_MD_FLACL, OBD_MD_FLBTIME, OBD_MD_FLDIREA, OBD_MD_FLEASIZE, OBD_MD_FLGETATTR,
    OBD_MD_FLID, OBD_MD_FLMODEASIZE, OBD_MD_MDS, OBD_MD_MEA, WireStruct, nul_terminated,
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
    | OBD_MD_FLACL
    | OBD_MD_FLID;

/// A found file, and the parts of the answer that a front end may cache.
pub struct FoundFile {
    /// The file's attributes.
    pub attr: Attr,
    /// Whether the name may be cached until `KernelCache::inval_entry`.
    pub name_cached: bool,
    /// Whether the attributes may be cached until `KernelCache::inval_inode`.
    pub attr_cached: bool,
    /// False: an object target failed or did not answer soon, so size, blocks and times are the
    /// metadata target's.
    pub size_known: bool,
    /// Locks that keep the answer valid. The front end drops `FoundFile` as soon as it has sent the
    /// answer.
    _held: Vec<LockRef>,
}

impl FoundFile {
    /// Releases the locks. The attributes stay; the front end may not cache them.
    pub fn without_locks(self) -> FoundFile {
        FoundFile {
            size_known: self.size_known,
            ..FoundFile::uncached(self.attr)
        }
    }

    /// An answer that may not be cached.
    pub(crate) fn uncached(attr: Attr) -> FoundFile {
        FoundFile {
            attr,
            name_cached: false,
            attr_cached: false,
            size_known: true,
            _held: Vec::new(),
        }
    }
}

/// Whether an answer waits for the sizes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeWait {
    /// Waits until the object targets answer.
    Full,
    /// Waits up to half a second; the size may be missing in the answer.
    Brief,
}

/// The size and times of a file's objects.
enum DataState {
    /// The file has no objects, or is not a regular file.
    NoObjects,
    /// An object target failed or did not answer in time.
    Unknown,
    Known {
        attr: DataAttr,
        /// Whether locks cover `attr`, so that it may be cached.
        covered: bool,
        file: Arc<DataFile>,
    },
}

/// Checks that a name is valid: 1 to 255 bytes, no `/`, no NUL.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        b"" => Err(Errno::ENOENT),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
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
            let (fid, md) = self.resolve_name(cred, parent, name).await?;
            let found = async {
                let md = match md {
                    Some(md) => md,
                    None => self.md(cred, fid).await?,
                };
                self.found_by_name(cred, fid, md, (parent, name)).await
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
    ) -> Result<(Fid, Option<MdAttr>), Errno> {
        let mdc = self.lmv.mdc_of(parent).await?;
        if let Some(Child::File(fid)) = self.inodes.child(parent, name) {
            let child_mdc = self.lmv.mdc_of(fid).await?;
            if child_mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP).is_some() {
                return Ok((fid, None));
            }
        }
        let is_listed = is_listed(parent, name);
        if let Some(cookie) = self.inodes.absence_lock(parent, name).filter(|_| is_listed)
            && self.update_cookie(mdc, parent) == Some(cookie)
        {
            return Err(Errno::ENOENT);
        }
        let cookie_before = self.update_cookie(mdc, parent);
        let suppgid = self.suppgid(cred, parent).await;
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
                    self.list_more_names(cred, mdc, parent, cookie, from).await;
                }
            }
            return Err(Errno::ENOENT);
        }
        let fid = reply.body.mbo_fid1;
        if reply.body.mbo_valid & OBD_MD_MDS != 0 {
            // Another metadata target has the file: the directory's target knows only the FID.
            return Ok((fid, None));
        }
        Ok((fid, Some(self.cache_reply(&reply, Some((parent, name))))))
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

    async fn getattr_with(&self, cred: &Cred, fid: Fid, size_wait: SizeWait) -> Result<FoundFile, Errno> {
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
        if md.attr.is_dir() {
            self.open_dirs.update(&md.attr);
        }
        self.with_data(cred, fid, md, None, size_wait).await
    }

    /// The metadata target's attributes of a file: cached, or requested with a lock.
    pub(crate) async fn md(&self, cred: &Cred, fid: Fid) -> Result<MdAttr, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        if let Some(md) = self.cached_md(mdc, fid) {
            return Ok(md);
        }
        let mut body = pack::body(cred, fid, fid, GETATTR, crate::cred::NO_GROUP);
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

    /// Caches the attributes, the layout and the name from an intent's reply, and marks a created
    /// file as unwritten, each only if the reply's lock covers it. Returns the attributes.
    pub(crate) fn cache_reply(&self, reply: &IntentReply, name: Option<(Fid, &[u8])>) -> MdAttr {
        let md = reply.md();
        let Some(lock) = &reply.lock else { return md };
        let info = lock.info();
        let (fid, bits) = (Fid::from_res_id(&info.res), info.policy.bits());
        if fid != reply.body.mbo_fid1 {
            return md;
        }
        {
            let inode = self.inodes.entry(fid);
            let mut state = inode.state.lock();
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
            }
            state.unwritten |= bits & MDS_INODELOCK_DOM != 0 && reply.created_file();
        }
        if bits & MDS_INODELOCK_LOOKUP != 0
            && let Some((parent, name)) = name
        {
            self.inodes.add_name(parent, name, fid);
        }
        md
    }

    /// [`Client::with_data`] for a file found by name. If the front end has a kernel, the kernel
    /// holds the directory during a lookup, so the wait for the size is brief.
    pub(crate) async fn found_by_name(
        &self,
        cred: &Cred,
        fid: Fid,
        md: MdAttr,
        name: (Fid, &[u8]),
    ) -> Result<FoundFile, Errno> {
        self.with_data(cred, fid, md, Some(name), self.default_size_wait())
            .await
    }

    /// [`SizeWait::Brief`] if the front end has a kernel, which requests a missing size again. Else
    /// [`SizeWait::Full`]: other front ends do not request it again.
    pub(crate) fn default_size_wait(&self) -> SizeWait {
        match self.kernel.get() {
            Some(_) => SizeWait::Brief,
            None => SizeWait::Full,
        }
    }

    /// Adds a regular file's size and times, and the locks under which the answer may be cached.
    /// `md` may be from an earlier lock, so this function reads the cached attributes again under
    /// the current lock. With `name`, the kernel holds the directory until the answer.
    pub(crate) async fn with_data(
        &self,
        cred: &Cred,
        fid: Fid,
        md: MdAttr,
        name: Option<(Fid, &[u8])>,
        size_wait: SizeWait,
    ) -> Result<FoundFile, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let data = self.data_attr(mdc, fid, &md, size_wait).await?;
        let attr_lock = self.attr_lock(mdc, fid);
        let has_kernel = self.kernel.get().is_some();
        let covered_md = attr_lock.as_ref().and_then(|_| {
            let inode = self.inodes.get(fid)?;
            let mut state = inode.state.lock();
            if has_kernel && state.md.as_ref().is_some_and(|md| md.attr.is_dir()) {
                state.kernel_viewers.add(cred.pid);
            }
            state.md.clone()
        });
        let layout_lock = match &data {
            DataState::NoObjects if md.attr.is_file() => self.empty_layout_lock(mdc, fid),
            _ => None,
        };
        let data_covered = match &data {
            DataState::Known { covered, .. } => *covered,
            DataState::Unknown => false,
            DataState::NoObjects => layout_lock.is_some() || !md.attr.is_file(),
        };
        let attr_cached = covered_md.is_some() && data_covered;
        let md = covered_md.unwrap_or(md);
        let attr = match &data {
            DataState::Known { attr, file, .. } => {
                let mut attr = md.with_data(attr);
                let atime = file.atime_tracker().atime(self.atime.files(), attr.times());
                attr.atime = mdc.precision().of(atime);
                attr
            }
            DataState::NoObjects | DataState::Unknown => md.attr.clone(),
        };
        if attr.has_hard_links() {
            self.invalidate_kernel_names(fid, name.is_none()).await;
        }
        let name_lock = name
            .filter(|_| !attr.has_hard_links())
            .and_then(|(parent, name)| {
                let lock = mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP)?;
                self.inodes.mark_in_kernel(parent, name, fid).then_some(lock)
            });
        Ok(FoundFile {
            attr,
            name_cached: name_lock.is_some(),
            attr_cached,
            size_known: !matches!(data, DataState::Unknown),
            _held: [name_lock, attr_lock, layout_lock]
                .into_iter()
                .flatten()
                .collect(),
        })
    }

    /// Invalidates the kernel's entries of a file with several names. The client lets the kernel
    /// cache no such name. The removal of one name revokes the lock that covers all names of the
    /// file. The kernel holds the directory during the removal, so it could not drop the other
    /// names in time. `wait`: the kernel does not hold the directory, so the answer waits for the
    /// invalidation, at most [`KERNEL_WAIT_MAX`].
    async fn invalidate_kernel_names(&self, fid: Fid, wait: bool) {
        let names = self.inodes.take_kernel_names(fid);
        if names.is_empty() || self.kernel.get().is_none() {
            return;
        }
        let kernel = self.kernel.clone();
        let invalidate = async move {
            if let Some(cache) = kernel.get() {
                for (parent, name) in &names {
                    cache.inval_entry(*parent, name, fid).await;
                }
            }
        };
        let invalidation = cpt::spawn(invalidate);
        if wait {
            let _ = tokio::time::timeout(KERNEL_WAIT_MAX, invalidation).await;
        }
    }

    /// The lock under which a file is known to have no objects, and so no data.
    fn empty_layout_lock(&self, mdc: &Mdc, fid: Fid) -> Option<LockRef> {
        let lock = mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LAYOUT)?;
        self.inodes.layout(fid)?.is_empty().then_some(lock)
    }

    /// The size and times of a regular file, from its objects.
    async fn data_attr(
        &self,
        mdc: &Mdc,
        fid: Fid,
        md: &MdAttr,
        size_wait: SizeWait,
    ) -> Result<DataState, Errno> {
        if !md.attr.is_file() {
            return Ok(DataState::NoObjects);
        }
        let mut known_layout = md.layout.clone();
        loop {
            let layout = match known_layout.take() {
                Some(layout) => layout,
                None => self.layout(fid).await?,
            };
            if layout.is_empty() {
                return Ok(DataState::NoObjects);
            }
            let file = self.data(fid, layout).await;
            if self.is_unwritten(mdc, fid) {
                let (attr, covered) = (DataAttr::default(), true);
                return Ok(DataState::Known { attr, covered, file });
            }
            if let Some(attr) = file.cached_attr() {
                let covered = true;
                return Ok(DataState::Known { attr, covered, file });
            }
            let found_attr = match size_wait {
                SizeWait::Full => file.attr().await.map(Some),
                SizeWait::Brief => file.attr_with_timeout().await,
            };
            if !self.is_current(fid, &file).await? {
                continue;
            }
            let Some(found_attr) = found_attr? else {
                return Ok(DataState::Unknown);
            };
            // The glimpse may have returned a lock.
            let (attr, covered) = file
                .cached_attr()
                .map_or((found_attr, false), |known| (known, true));
            return Ok(DataState::Known { attr, covered, file });
        }
    }

    /// Whether this client created the file, has not written to it, and holds the lock that
    /// excludes other writers.
    pub(crate) fn is_unwritten(&self, mdc: &Mdc, fid: Fid) -> bool {
        let is_marked = || {
            self.inodes
                .get(fid)
                .is_some_and(|inode| inode.state.lock().unwritten)
        };
        // The lock may be revoked and granted again between the check of the mark and of the lock.
        is_marked() && mdc.has_lock(fid, LockMode::Pr, MDS_INODELOCK_DOM) && is_marked()
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
