//! The answer to a lookup or getattr: the metadata target's attributes with the size and times of a
//! file's objects or a striped directory's stripes, and the locks under which they may be cached.

use super::name_dir::NameDir;
use super::stripe_sum::StripeSum;
use crate::attr::{Attr, DataAttr, MdAttr, Striping};
use crate::client::Client;
use crate::cred::Cred;
use crate::data::DataFile;
use crate::inode::ATTR_BITS;
use crate::mdc::Mdc;
use crate::owner::KERNEL_WAIT_MAX;
use ldlm::{LockMode, LockRef};
use std::sync::Arc;
use std::time::Duration;
use wire::striping::LmvLayout;
use wire::{Errno, Fid, INODELOCK_UNWRITTEN, MDS_INODELOCK_LAYOUT, MDS_INODELOCK_LOOKUP};

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

/// The size and times of a file's objects, or of a directory's stripes.
enum DataState {
    /// The file has no objects, or is neither a regular file nor a striped directory.
    NoObjects,
    /// An object target failed, or a target did not answer in time.
    Unknown,
    Known {
        attr: DataAttr,
        /// Whether locks cover `attr`, so that it may be cached.
        covered: bool,
        file: Arc<DataFile>,
    },
    /// The directory is striped.
    Stripes(StripeSum),
}

impl DataState {
    /// The locks that cover the state of stripes.
    fn into_locks(self) -> Vec<LockRef> {
        match self {
            DataState::Stripes(sum) => sum.locks,
            _ => Vec::new(),
        }
    }
}

/// The longest time for which [`SizeWait::Brief`] waits for a directory's stripes.
const STRIPES_WAIT_MAX: Duration = Duration::from_millis(500);

impl Client {
    /// [`Client::with_data`] for a file found by name. If the front end has a kernel, the kernel
    /// holds the directory during a lookup, so the wait for the size is brief.
    pub(crate) async fn found_by_name(
        &self,
        cred: &Cred,
        fid: Fid,
        md: MdAttr,
        name: (&NameDir<'_>, &[u8]),
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
        name: Option<(&NameDir<'_>, &[u8])>,
        size_wait: SizeWait,
    ) -> Result<FoundFile, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let data = match &md.striping {
            Striping::Striped(layout) => self.stripes_state(cred, fid, layout, size_wait).await?,
            _ => self.data_attr(mdc, fid, &md, size_wait).await?,
        };
        let attr_lock = mdc.find(fid, LockMode::Pr, ATTR_BITS);
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
            DataState::Stripes(sum) => sum.is_covered(),
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
            DataState::Stripes(sum) => sum.merge(&md.attr),
            DataState::NoObjects | DataState::Unknown => md.attr.clone(),
        };
        if attr.has_hard_links() {
            self.invalidate_kernel_names(fid, name.is_none()).await;
        }
        let name_lock = name.filter(|_| !attr.has_hard_links()).and_then(|(dir, name)| {
            let lock = dir.mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LOOKUP)?;
            self.inodes
                .mark_in_kernel(dir.fid, name, fid, dir.shown)
                .then_some(lock)
        });
        Ok(FoundFile {
            attr,
            name_cached: name_lock.is_some(),
            attr_cached,
            size_known: !matches!(data, DataState::Unknown),
            _held: [name_lock, attr_lock, layout_lock]
                .into_iter()
                .flatten()
                .chain(data.into_locks())
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

    /// The sum of a directory's stripes. With [`SizeWait::Brief`], unknown if one of their targets
    /// does not answer soon: names in the other stripes stay usable while one target is dead.
    async fn stripes_state(
        &self,
        cred: &Cred,
        dir: Fid,
        layout: &LmvLayout,
        size_wait: SizeWait,
    ) -> Result<DataState, Errno> {
        // On the heap: every lookup's future contains this one.
        let sum = Box::pin(self.stripe_sum(cred, dir, layout));
        match size_wait {
            SizeWait::Full => sum.await.map(DataState::Stripes),
            SizeWait::Brief => match tokio::time::timeout(STRIPES_WAIT_MAX, sum).await {
                Ok(sum) => sum.map(DataState::Stripes),
                Err(_) => Ok(DataState::Unknown),
            },
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
        is_marked() && mdc.has_lock(fid, LockMode::Pr, INODELOCK_UNWRITTEN) && is_marked()
    }
}
