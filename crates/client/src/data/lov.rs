//! All object targets of a file system, and the files whose data is in use.

use super::brw::ObjectId;
use super::cached::Cached;
use super::file::DataFile;
use super::losses::Losses;
use super::osc::{Osc, OscTarget};
use crate::client::Clock;
use crate::kernel::Kernel;
use crate::layout::{LovLayout, Stripe};
use crate::lmv::Lmv;
use foldhash::HashMap;
use ldlm::LockRoom;
use mgc::FsConfig;
use params::{Group, Registry};
use parking_lot::{Mutex, RwLock};
use rpc::{Import, Ptlrpc};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;
use wire::{Errno, Fid, ObdStatfs, OstIndex};

/// What the data half of a mount needs to know beside the configuration.
pub struct DataConfig {
    /// The mount's UUID, the same for all its imports.
    pub client_uuid: String,
    /// What names of parameters and imports end in (`testfs-OST0000-osc-<instance>`).
    pub instance: String,
    /// Where parameters go.
    pub params: Registry,
    /// The kernel's caches, to be told when an extent lock is called back.
    pub kernel: Kernel,
    /// The time of day, for the times of what is written.
    pub clock: Clock,
    /// Whether targets are asked for times with nanoseconds.
    pub nanoseconds: bool,
    /// How many unused locks the mount keeps.
    pub locks: Arc<LockRoom>,
    /// The metadata targets, which give capabilities for objects.
    pub(crate) lmv: Arc<Lmv>,
}

/// See the module.
pub struct Lov {
    rpc: Arc<Ptlrpc>,
    cfg: DataConfig,
    oscs: RwLock<BTreeMap<OstIndex, Arc<Osc>>>,
    files: Mutex<HashMap<Fid, Weak<DataFile>>>,
    losses: Arc<Losses>,
    cached: Arc<Cached>,
    shown: Mutex<Option<Group>>,
}

impl Lov {
    /// Makes an import to every object target; connects in the background, and again whenever a connection is lost.
    pub fn new(rpc: &Arc<Ptlrpc>, conf: &FsConfig, cfg: DataConfig) -> Arc<Lov> {
        let cached = Arc::<Cached>::default();
        let shown = cached.show(&cfg.params, &format!("{}-{}", conf.fsname, cfg.instance));
        let lov = Lov {
            rpc: rpc.clone(),
            cfg,
            cached,
            shown: Mutex::new(Some(shown)),
            oscs: RwLock::default(),
            files: Mutex::default(),
            losses: Arc::default(),
        };
        lov.add_new(conf);
        Arc::new(lov)
    }

    /// Adds the targets that have joined.
    pub(crate) fn add_new(&self, conf: &FsConfig) {
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
                Osc::start(&self.rpc, target, &self.cfg, &self.cached, self.losses.clone())
            });
        }
    }

    /// Adds the targets that have joined, and connects to those that have moved at their new NIDs.
    pub(crate) fn update(&self, conf: &FsConfig) {
        self.add_new(conf);
        let oscs = self.oscs.read();
        for ost in &conf.osts {
            if let Some(osc) = oscs.get(&OstIndex(ost.index)) {
                osc.import().set_nids(&ost.nids);
            }
        }
    }

    /// Whether all targets of a layout are known.
    pub(crate) fn knows(&self, layout: &LovLayout) -> bool {
        let oscs = self.oscs.read();
        layout.stripes.iter().all(|s| oscs.contains_key(&s.ost))
    }

    /// Which files have lost data, and who knows.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The targets, by their index in layouts.
    fn oscs(&self) -> Vec<Arc<Osc>> {
        self.oscs.read().values().cloned().collect()
    }

    /// The connections to the targets.
    pub(crate) fn imports(&self) -> Vec<Arc<Import>> {
        self.oscs
            .read()
            .values()
            .map(|osc| osc.import().clone())
            .collect()
    }

    /// The data of a file: the same object for the same FID as long as it is in use or has anything cached; a newer layout
    /// takes the place of the one it had.
    pub fn file(&self, fid: Fid, layout: Arc<LovLayout>) -> Arc<DataFile> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(&fid).and_then(Weak::upgrade)
            && *file.layout() == layout
            && file.is_complete()
        {
            return file;
        }
        let oscs = self.oscs.read();
        let objects = layout
            .stripes
            .iter()
            .enumerate()
            .map(|(i, stripe)| Some(oscs.get(&stripe.ost)?.object(object_id(fid, i, stripe))))
            .collect();
        let file = Arc::new(DataFile::new(layout, objects));
        files.insert(fid, Arc::downgrade(&file));
        if files.len() > 2 * FILES_SWEEP.max(files.capacity() / 4) {
            files.retain(|_, file| file.strong_count() > 0);
        }
        file
    }

    /// Forgets a file that is gone: dirty pages are dropped, not written.
    pub fn discard(&self, fid: Fid, layout: &LovLayout) {
        self.files.lock().remove(&fid);
        let oscs = self.oscs.read();
        for (i, stripe) in layout.stripes.iter().enumerate() {
            if let Some(osc) = oscs.get(&stripe.ost) {
                osc.discard(&object_id(fid, i, stripe));
            }
        }
    }

    /// What all object targets say of their space: one each, those that do not answer left out.
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

    /// The file that an object of a target belongs to.
    pub(crate) async fn file_of(&self, ost: OstIndex, object: Fid) -> Result<Fid, Errno> {
        let osc = self.oscs.read().get(&ost).cloned();
        osc.ok_or(Errno::ENODEV)?.file_of(object).await
    }

    /// Writes all dirty data back, cancels all locks, disconnects: each in bounded time, also when a target is gone.
    pub async fn umount(&self) {
        let mut tasks = JoinSet::new();
        for osc in self.oscs() {
            tasks.spawn(async move { osc.umount().await });
        }
        while tasks.join_next().await.is_some() {}
        self.oscs.write().clear();
        self.shown.lock().take();
    }
}

/// How many entries of files that nobody uses may lie around before they are swept out.
const FILES_SWEEP: usize = 1024;

/// A file's object, by its place in the layout.
fn object_id(file: Fid, i: usize, stripe: &Stripe) -> ObjectId {
    ObjectId {
        oi: stripe.oi,
        parent: file,
        stripe: i as u32,
    }
}
