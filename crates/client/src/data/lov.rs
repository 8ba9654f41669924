//! All object targets of a file system, and the files with data in use.

use super::brw::ObjectId;
use super::cache_limit::CacheLimit;
use super::file::DataFile;
use super::losses::Losses;
use super::object::resource;
use super::osc::{Osc, OscTarget};
use crate::client::Clock;
use crate::kernel::Kernel;
use crate::layout::{FileLayout, Stripe};
use crate::lmv::Lmv;
use crate::stats::MountStats;
use cpt::{HashMap, JoinSet};
use ldlm::UnusedLockBudget;
use mgc::FsConfig;
use params::{Group, Registry};
use parking_lot::{Mutex, RwLock};
use rpc::{Import, Ptlrpc};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use wire::{Errno, Fid, ObdStatfs, OstIndex, StripeIndex};

/// The inputs of a mount's [`Lov`].
pub struct DataConfig {
    /// The UUID of the mount, the same for all its imports.
    pub client_uuid: String,
    /// Suffix of parameter and import names (`testfs-OST0000-osc-<instance>`).
    pub instance: String,
    /// The registry for the parameters.
    pub params: Registry,
    /// The kernel's caches, invalidated when the mount loses an extent lock or data.
    pub kernel: Kernel,
    /// The clock for mtime and ctime of data changes.
    pub clock: Clock,
    /// Whether to request times with nanoseconds from the targets.
    pub nanoseconds: bool,
    /// The limit of unused locks, shared by all targets.
    pub lock_budget: Arc<UnusedLockBudget>,
    /// The mount's statistics.
    pub(crate) stats: Arc<MountStats>,
    /// The metadata targets, which issue capabilities for objects.
    pub(crate) lmv: Arc<Lmv>,
}

/// All object targets of a mount.
pub struct Lov {
    rpc: Arc<Ptlrpc>,
    cfg: DataConfig,
    oscs: RwLock<BTreeMap<OstIndex, Arc<Osc>>>,
    files: Mutex<HashMap<Fid, Weak<DataFile>>>,
    losses: Arc<Losses>,
    cache_limit: Arc<CacheLimit>,
    /// The parameter of `cache_limit`, until the unmount.
    limit_params: Mutex<Option<Group>>,
}

impl Lov {
    /// Creates an OSC for every object target. The OSCs connect in the background, and reconnect
    /// when a connection is lost.
    pub fn new(rpc: &Arc<Ptlrpc>, conf: &FsConfig, cfg: DataConfig) -> Arc<Lov> {
        let cache_limit = Arc::<CacheLimit>::default();
        let limit_params =
            cache_limit.register_params(&cfg.params, &format!("{}-{}", conf.fsname, cfg.instance));
        let lov = Lov {
            rpc: rpc.clone(),
            cfg,
            cache_limit,
            limit_params: Mutex::new(Some(limit_params)),
            oscs: RwLock::default(),
            files: Mutex::default(),
            losses: Arc::default(),
        };
        lov.add_new_targets(conf);
        Arc::new(lov)
    }

    /// Adds targets that joined the file system.
    pub(crate) fn add_new_targets(&self, conf: &FsConfig) {
        let mut oscs = self.oscs.write();
        for ost in &conf.osts {
            oscs.entry(OstIndex(ost.index)).or_insert_with(|| {
                let target = OscTarget {
                    name: format!("{}-osc-{}", ost.name, self.cfg.instance),
                    target_uuid: ost.uuid.clone(),
                    client_uuid: self.cfg.client_uuid.clone(),
                    index: OstIndex(ost.index),
                    nids: ost.nids.clone(),
                };
                Osc::start(
                    &self.rpc,
                    target,
                    &self.cfg,
                    &self.cache_limit,
                    self.losses.clone(),
                )
            });
        }
    }

    /// Adds targets that joined, and sets the NIDs of targets that moved.
    pub(crate) fn update(&self, conf: &FsConfig) {
        self.add_new_targets(conf);
        let oscs = self.oscs.read();
        for ost in &conf.osts {
            if let Some(osc) = oscs.get(&OstIndex(ost.index)) {
                osc.import().set_nids(&ost.nids);
            }
        }
    }

    /// Whether all targets of a layout are known.
    pub(crate) fn knows_targets(&self, layout: &FileLayout) -> bool {
        let oscs = self.oscs.read();
        layout.objects().all(|(_, s)| oscs.contains_key(&s.ost))
    }

    /// The inputs with which this `Lov` was created.
    pub(crate) fn config(&self) -> &DataConfig {
        &self.cfg
    }

    /// The files that have lost data.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The OSCs in the order of their index.
    fn oscs(&self) -> Vec<Arc<Osc>> {
        self.oscs.read().values().cloned().collect()
    }

    /// The imports of the targets.
    pub(crate) fn imports(&self) -> Vec<Arc<Import>> {
        self.oscs
            .read()
            .values()
            .map(|osc| osc.import().clone())
            .collect()
    }

    /// The data of a file. All callers with the same FID and layout share one value while it is in
    /// use and all its targets are known. A call with a new layout replaces the value.
    pub fn file(&self, fid: Fid, layout: Arc<FileLayout>) -> Arc<DataFile> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(&fid).and_then(Weak::upgrade)
            && *file.layout() == layout
            && file.is_complete()
        {
            return file;
        }
        let oscs = self.oscs.read();
        let objects = layout
            .objects()
            .map(|(i, stripe)| Some(oscs.get(&stripe.ost)?.object(object_id(fid, i, stripe))))
            .collect();
        let file = Arc::new(DataFile::new(fid, layout, objects));
        files.insert(fid, Arc::downgrade(&file));
        if files.len() > 2 * FILES_SWEEP_MIN.max(files.capacity() / 4) {
            files.retain(|_, file| file.strong_count() > 0);
        }
        file
    }

    /// The data of a file with the layout of the last [`Lov::file`] call; `None`: no task uses it.
    pub(crate) fn find_file(&self, fid: Fid) -> Option<Arc<DataFile>> {
        self.files.lock().get(&fid).and_then(Weak::upgrade)
    }

    /// The data of a file, if any of its objects is in use or locked.
    pub(crate) fn file_in_use(&self, fid: Fid, layout: Arc<FileLayout>) -> Option<Arc<DataFile>> {
        let in_use = {
            let oscs = self.oscs.read();
            layout.objects().any(|(i, stripe)| {
                let res = resource(&object_id(fid, i, stripe));
                oscs.get(&stripe.ost)
                    .is_some_and(|osc| osc.find_object(&res).is_some())
            })
        };
        in_use.then(|| self.file(fid, layout))
    }

    /// Drops a removed file's cache without writing dirty pages.
    pub fn discard(&self, fid: Fid, layout: &FileLayout) {
        self.files.lock().remove(&fid);
        let oscs = self.oscs.read();
        for (i, stripe) in layout.objects() {
            if let Some(osc) = oscs.get(&stripe.ost) {
                osc.discard(&object_id(fid, i, stripe));
            }
        }
    }

    /// The space of each object target, by index. Targets that fail or do not answer are missing.
    pub async fn statfs(&self) -> Vec<(OstIndex, ObdStatfs)> {
        let mut tasks = JoinSet::new();
        for osc in self.oscs() {
            tasks.spawn(async move { (osc.index(), osc.statfs().await) });
        }
        let mut all = Vec::new();
        while let Some(Ok((index, answer))) = tasks.join_next().await {
            all.extend(answer.ok().map(|statfs| (index, statfs)));
        }
        all.sort_by_key(|(index, _)| *index);
        all
    }

    /// The file of an object. `ENODEV`: the mount does not know the OST.
    pub(crate) async fn file_of(&self, ost: OstIndex, object: Fid) -> Result<Fid, Errno> {
        let osc = self.oscs.read().get(&ost).cloned();
        osc.ok_or(Errno::ENODEV)?.file_of(object).await
    }

    /// Writes dirty data back, cancels all locks, disconnects. Each step has a time limit.
    pub async fn umount(&self) {
        let mut tasks = JoinSet::new();
        for osc in self.oscs() {
            tasks.spawn(async move { osc.umount().await });
        }
        while tasks.join_next().await.is_some() {}
        self.oscs.write().clear();
        self.limit_params.lock().take();
    }
}

/// The file table is swept of unused files when it has more than twice this number of entries and
/// fills more than half of its capacity.
const FILES_SWEEP_MIN: usize = 1024;

/// The ID of a file's object, with its stripe number.
fn object_id(file: Fid, index: StripeIndex, stripe: &Stripe) -> ObjectId {
    ObjectId {
        oi: stripe.oi,
        parent: file,
        stripe: index,
    }
}
