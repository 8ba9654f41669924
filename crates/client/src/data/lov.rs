//! All object targets of a file system, and the files with data in use.

use super::brw::ObjectId;
use super::cache_limit::CacheLimit;
use super::config::DataConfig;
use super::file::DataFile;
use super::losses::Losses;
use super::object::{OpenedData, resource};
use super::objects::{DataWatch, OstObjects};
use super::osc::OscTarget;
use crate::layout::{FileLayout, Stripe, StripeTarget};
use crate::mdc::Mdc;
use crate::umount::Unsaved;
use cpt::{HashMap, JoinSet};
use ldlm::LockOwner;
use mgc::{FsConfig, NidTable};
use params::Group;
use parking_lot::{Mutex, RwLock};
use rpc::{Import, ImportOwner, Ptlrpc};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::time::Instant;
use wire::{Errno, Fid, ObdStatfs, OstIndex, StripeIndex};

/// All object targets of a mount.
pub struct Lov {
    rpc: Arc<Ptlrpc>,
    cfg: DataConfig,
    osts: RwLock<BTreeMap<OstIndex, Arc<OstObjects>>>,
    /// The metadata targets with data that this mount has used, by index.
    mdts: RwLock<BTreeMap<u32, Arc<OstObjects>>>,
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
            osts: RwLock::default(),
            mdts: RwLock::default(),
            files: Mutex::default(),
            losses: Arc::default(),
        };
        lov.add_new_targets(conf);
        Arc::new(lov)
    }

    /// Adds targets that joined the file system.
    pub(crate) fn add_new_targets(&self, conf: &FsConfig) {
        let mut osts = self.osts.write();
        for ost in &conf.osts {
            osts.entry(OstIndex(ost.index)).or_insert_with(|| {
                let target = OscTarget {
                    name: format!("{}-osc-{}", ost.name, self.cfg.instance),
                    target_uuid: ost.uuid.clone(),
                    client_uuid: self.cfg.client_uuid.clone(),
                    index: OstIndex(ost.index),
                    nids: ost.nids.clone(),
                };
                OstObjects::start(
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
        let osts = self.osts.read();
        for ost in &conf.osts {
            if let Some(known) = osts.get(&OstIndex(ost.index)) {
                known.osc().import().set_nids(&ost.nids);
            }
        }
    }

    /// Reconnects to targets that have started again.
    pub(crate) fn apply_locations(&self, table: &NidTable) {
        let osts = self.osts.read();
        for location in table.of_kind(false) {
            if let Some(known) = osts.get(&OstIndex(location.index)) {
                known
                    .osc()
                    .import()
                    .target_started(&location.nids, location.instance);
            }
        }
    }

    /// Whether all targets of a layout are known.
    pub(crate) fn knows_targets(&self, layout: &FileLayout) -> bool {
        let osts = self.osts.read();
        layout.objects().all(|(_, s)| match s.target {
            StripeTarget::Ost(ost) => osts.contains_key(&ost),
            StripeTarget::Mdt => true,
        })
    }

    /// The inputs with which this `Lov` was created.
    pub(crate) fn config(&self) -> &DataConfig {
        &self.cfg
    }

    /// The files that have lost data.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The targets in the order of their index.
    fn osts(&self) -> Vec<Arc<OstObjects>> {
        self.osts.read().values().cloned().collect()
    }

    /// The imports of the targets.
    pub(crate) fn imports(&self) -> Vec<Arc<Import>> {
        self.osts
            .read()
            .values()
            .map(|ost| ost.osc().import().clone())
            .collect()
    }

    /// The objects of a stripe's target; `None` if the mount does not know the target.
    fn objects_of(&self, file: Fid, stripe: &Stripe) -> Option<Arc<OstObjects>> {
        let ost = match stripe.target {
            StripeTarget::Ost(ost) => ost,
            StripeTarget::Mdt => return self.objects_on_mdt(self.cfg.lmv.known_mdc_of(file)?),
        };
        self.osts.read().get(&ost).cloned()
    }

    fn objects_on_mdt(&self, mdc: &Arc<Mdc>) -> Option<Arc<OstObjects>> {
        if let Some(known) = self.mdts.read().get(&mdc.index) {
            return Some(known.clone());
        }
        let mut mdts = self.mdts.write();
        let new = || OstObjects::of_mdt(mdc, &self.cfg, &self.cache_limit, self.losses.clone());
        Some(mdts.entry(mdc.index).or_insert_with(new).clone())
    }

    /// The owner of the locks on data of a metadata target, and of its connection as far as data is
    /// concerned; `None` if this mount has used no such data.
    pub(crate) fn owner_of_mdt_data(&self, index: u32) -> Option<impl LockOwner + ImportOwner + use<>> {
        let mdts = self.mdts.read();
        mdts.get(&index).map(|mdt| mdt.owner())
    }

    /// Watches a file's data on its MDT for changes by this mount, from now on.
    pub(crate) fn watch_data(&self, fid: Fid) -> DataWatch {
        let mdc = self.cfg.lmv.known_mdc_of(fid);
        let mdt = mdc.and_then(|mdc| self.objects_on_mdt(mdc));
        mdt.map(|mdt| mdt.watch(&fid.res_id())).unwrap_or_default()
    }

    /// Takes the size of a file's data on its MDT that came with a lock. The lock keeps the object.
    pub(crate) fn take_locked(&self, fid: Fid, layout: &FileLayout, locked: &OpenedData<'_>) {
        let on_mdt = layout.objects().find(|(_, s)| s.target == StripeTarget::Mdt);
        if let Some((i, stripe)) = on_mdt
            && let Some(mdt) = self.objects_of(fid, stripe)
        {
            mdt.object(object_id(fid, i, stripe)).take_locked(locked);
        }
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
        let objects = layout
            .objects()
            .map(|(i, stripe)| Some(self.objects_of(fid, stripe)?.object(object_id(fid, i, stripe))))
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
            layout.objects().any(|(i, stripe)| {
                let res = resource(&object_id(fid, i, stripe));
                self.objects_of(fid, stripe)
                    .is_some_and(|ost| ost.find_object(&res).is_some())
            })
        };
        in_use.then(|| self.file(fid, layout))
    }

    /// Drops a removed file's cache without writing dirty pages.
    pub fn discard(&self, fid: Fid, layout: &FileLayout) {
        self.files.lock().remove(&fid);
        for (i, stripe) in layout.objects() {
            if let Some(ost) = self.objects_of(fid, stripe) {
                ost.discard(&object_id(fid, i, stripe));
            }
        }
    }

    /// The space of each object target, by index. Targets that fail or do not answer are missing.
    pub async fn statfs(&self) -> Vec<(OstIndex, ObdStatfs)> {
        let mut tasks = JoinSet::new();
        for ost in self.osts() {
            tasks.spawn(async move { (ost.osc().index(), ost.osc().statfs().await) });
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
        let ost = self.osts.read().get(&ost).cloned();
        ost.ok_or(Errno::ENODEV)?.osc().file_of(object).await
    }

    /// Leaves all OSTs at the same time, as [`super::objects::OstObjects::umount`] does.
    pub async fn umount(&self, deadline: Instant) -> Vec<Unsaved> {
        let mut tasks = JoinSet::new();
        for ost in self.osts() {
            tasks.spawn(async move { ost.umount(deadline).await });
        }
        let unsaved = tasks.join_all().await.into_iter().flatten().collect();
        self.osts.write().clear();
        let mdts = std::mem::take(&mut *self.mdts.write());
        mdts.values().for_each(|mdt| mdt.forget_all());
        self.limit_params.lock().take();
        unsaved
    }
}

/// The file table is swept of unused files when it has more than twice this number of entries and
/// fills more than half of its capacity.
const FILES_SWEEP_MIN: usize = 1024;

/// The ID of a file's object, with its stripe number.
fn object_id(file: Fid, index: StripeIndex, stripe: &Stripe) -> ObjectId {
    ObjectId {
        oi: match stripe.target {
            StripeTarget::Ost(_) => stripe.oi,
            StripeTarget::Mdt => file.into(),
        },
        parent: file,
        stripe: index,
    }
}
