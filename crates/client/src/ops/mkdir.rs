//! Creation of directories, on the metadata target that the caller, a default layout or the free
//! space selects.

use super::found::FoundFile;
use super::fs::statfs_request;
use super::lookup::check_name;
use super::name_dir::NameDir;
use crate::attr::{MdAttr, S_IFDIR, Striping};
use crate::client::{Client, STATFS_TIMEOUT};
use crate::cred::{Cred, NO_GROUP};
use crate::lmv::placement::{Parent, Placement};
use crate::mdc::{Elc, Mdc, NameChange, Reint, replay_mkdir};
use crate::pack::{self, CreateData, CreateRec, Suppgids};
use crate::stats::Operation;
use bytes::Bytes;
use cpt::JoinSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Errno, Fid, LMV_USER_MAGIC, LMV_USER_MAGIC_SPECIFIC, LmvUserMdV1, MDS_MKDIR_LMV, MDS_OPEN_CREAT, MdtBody,
    WireStruct,
};

/// Index of the buffer with the parent directory's attributes, in the reply to a create.
pub(super) const CREATE_REPLY_PARENT_ATTR: usize = 4;
/// Largest number of targets that one creation is sent to.
const TARGETS_MAX: usize = 4;

impl Client {
    /// Creates a directory.
    ///
    /// # Errors
    ///
    /// `EEXIST`, `ENAMETOOLONG`, or an error of the MDT such as `EACCES`, `ENOSPC`.
    pub async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<FoundFile, Errno> {
        self.mkdir_with(cred, parent, name, mode, Bytes::new()).await
    }

    /// As [`Client::mkdir`], with the layout of the directory (`lmv_user_md`): its metadata target,
    /// and the number of its stripes. Empty: the default layout decides.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a malformed layout; `ENODEV`: the mount does not know the target; else as
    /// [`Client::mkdir`].
    pub async fn mkdir_with(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        layout: Bytes,
    ) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Mkdir);
        check_name(name)?;
        let request = parse_request(&layout)?;
        let dir = self.dir_for_new_name(cred, parent, name).await?;
        let mut mdc = self.mkdir_target(cred, &dir, request.as_ref()).await?;
        for _ in 0..TARGETS_MAX {
            let create_only = request.map_or(0, |_| MDS_OPEN_CREAT);
            let rec = CreateRec {
                parent: dir.fid,
                child: mdc.new_fid().await?,
                mode: S_IFDIR | mode & 0o7777,
                rdev: 0,
                flags: MDS_MKDIR_LMV | create_only,
                layout_version: dir.layout_version,
                time: self.now(mdc),
                suppgids: Suppgids(self.suppgid(cred, dir.shown).await, NO_GROUP),
            };
            let elc = dir_elc(mdc, &dir);
            let change = NameChange::begin(cred, &dir, Some(name));
            let bufs = pack::create(cred, &rec, name, CreateData::Layout(layout.clone()), &elc);
            let attr_index = Some(CREATE_REPLY_PARENT_ATTR);
            let answer = mdc
                .send_changes([change], bufs, attr_index, Some(replay_mkdir))
                .await?;
            match answer {
                Reint::Done(reply) => {
                    let body: MdtBody = reply.get(bufs::MDT_BODY)?;
                    let none = Bytes::new();
                    let layout = reply.bytes(bufs::CREATE_REPLY_MD);
                    let md = MdAttr::from_reply(&body, &layout, &none, mdc.precision());
                    if md.striping != Striping::None {
                        self.inodes.note_unknown_striped();
                    }
                    return Ok(self.found_new_dir(cred, parent, name, md).await);
                }
                Reint::Elsewhere(fid) => mdc = self.lmv.mdc_of(fid).await?,
            }
        }
        Err(Errno::EREMOTE)
    }

    /// The answer to a mkdir. The reply has no lock. A kernel soon asks for the new directory again
    /// unless it may keep the answer, so this function takes the lock now.
    async fn found_new_dir(&self, cred: &Cred, parent: Fid, name: &[u8], md: MdAttr) -> FoundFile {
        if self.kernel.get().is_some() {
            // On the heap: this future is much larger than that of the mkdir itself.
            match Box::pin(self.lookup(cred, parent, name)).await {
                Ok(found) if found.attr.fid == md.attr.fid => return found,
                // Another client has removed or renamed the directory, or the lookup failed.
                _ => {}
            }
        }
        FoundFile::uncached(md.attr)
    }

    /// The target for a new directory.
    async fn mkdir_target<'c>(
        &'c self,
        cred: &Cred,
        dir: &NameDir<'c>,
        request: Option<&LmvUserMdV1>,
    ) -> Result<&'c Arc<Mdc>, Errno> {
        if self.lmv.all().nth(1).is_none() && request.is_none() {
            return Ok(dir.mdc);
        }
        let is_striped = dir.shown != dir.fid;
        let root_default = self.lmv.root_default.read().clone();
        let default = match self.inodes.last_known_attr(dir.shown) {
            Some(md) => md.default_dir_layout,
            None => self.md(cred, dir.shown).await?.default_dir_layout,
        };
        let depth = self.inodes.depth(dir.shown);
        let parent = Parent {
            is_striped,
            is_root: dir.shown.is_root(),
            depth,
            default: default.as_deref(),
            root_default: root_default.as_deref(),
        };
        match Placement::of(request, parent) {
            Placement::Parent => Ok(dir.mdc),
            Placement::Fixed(index) => self.lmv.by_index(index),
            Placement::Space { spread } => {
                self.refresh_spaces(request.is_some()).await;
                let by_space = {
                    let spaces = self.lmv.spaces.lock();
                    let random = |below: u128| self.lmv.rng.lock().u128(0..below);
                    spaces.choose(dir.mdc.index, spread, depth.unwrap_or(0), random)
                };
                match by_space {
                    Some(index) => self.lmv.by_index(index),
                    None if spread => Ok(self.next_in_turn().unwrap_or(dir.mdc)),
                    None => Ok(dir.mdc),
                }
            }
        }
    }

    /// The next connected target in turn that accepts new files.
    fn next_in_turn(&self) -> Option<&Arc<Mdc>> {
        let spaces = self.lmv.spaces.lock();
        let is_usable = |mdc: &&Arc<Mdc>| mdc.is_connected() && !spaces.is_full(mdc.index);
        let usable: Vec<_> = self.lmv.all().filter(is_usable).collect();
        let next = self.lmv.next_in_turn.load(Ordering::Relaxed);
        let chosen = usable.iter().find(|mdc| mdc.index >= next).or(usable.first())?;
        self.lmv.next_in_turn.store(chosen.index + 1, Ordering::Relaxed);
        Some(chosen)
    }

    /// Asks the targets for their free space if the last answers are old. `wait`: until the targets
    /// have answered, at most [`STATFS_TIMEOUT`].
    async fn refresh_spaces(&self, wait: bool) {
        let is_old = {
            let mut spaces = self.lmv.spaces.lock();
            let now = Instant::now();
            let is_old = spaces.is_old(now);
            if is_old {
                spaces.asked_at = Some(now);
            }
            is_old
        };
        if !is_old {
            return;
        }
        let mut requests = JoinSet::new();
        for mdc in self.lmv.all().cloned() {
            let request = statfs_request(&mdc, Some(STATFS_TIMEOUT));
            requests.spawn(async move {
                let reply = mdc.import.call(request).await.ok()?;
                Some((mdc.index, reply.get(bufs::OBD_STATFS).ok()?))
            });
        }
        let lmv = self.lmv.clone();
        let answers = async move {
            let answers = requests.join_all().await;
            lmv.spaces.lock().by_index = answers.into_iter().flatten().collect();
        };
        match wait {
            true => answers.await,
            false => {
                cpt::spawn(answers);
            }
        }
    }
}

/// The caller's own locks on a directory, which the creation of a name there by this target
/// revokes. Another target than the directory's cannot cancel them.
fn dir_elc(mdc: &Arc<Mdc>, dir: &NameDir<'_>) -> Elc {
    match mdc.index == dir.mdc.index {
        true => mdc.elc(&[dir.fid], &[]),
        false => Elc::default(),
    }
}

/// The header of a requested layout; `None`: the caller requests none.
fn parse_request(layout: &Bytes) -> Result<Option<LmvUserMdV1>, Errno> {
    if layout.is_empty() {
        return Ok(None);
    }
    let head = layout.get(..LmvUserMdV1::SIZE).ok_or(Errno::EINVAL)?;
    let head = LmvUserMdV1::from_bytes(head).map_err(|_| Errno::EINVAL)?;
    match head.lum_magic {
        LMV_USER_MAGIC | LMV_USER_MAGIC_SPECIFIC => Ok(Some(head)),
        _ => Err(Errno::EINVAL),
    }
}
