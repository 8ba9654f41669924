//! A file system on one node: an MDT, OSTs that store nothing, and clients.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use mdt::{Mdt, MdtConfig};
use mgc::{CapaKeyring, CapaKeys, FsConfig, NodemapTable, Nodemaps, TargetConf};
use osd::{Index, MemoryIndex};
use parking_lot::Mutex;
use rpc::{BoxFuture, ConnectRequest, EndReason, Export, Ptlrpc, Reply, ServerRequest, Target};
use testbase::{rpc_node, slow_index};
use tokio::sync::watch;
use wire::{
    Errno, Fid, LU_SEQ_RANGE_OST, LockTerms, LuSeqRange, Nid, OBD_FL_DELORPHAN, OBD_MD_FLFID, OBD_MD_FLUID,
    OBD_OBJECT_EOF, OST_CREATE, OST_DESTROY, OST_PUNCH, OST_SETATTR, OST_STATFS, OST_SYNC, ObdConnectData,
    ObdStatfs, Obdo, OstBody, SEQ_QUERY, WireStruct,
};

use testbase::mds_client::{Client, MDT};

/// An OST without storage that records some of its requests.
pub(crate) struct RecordingOst {
    uuid: String,
    index: u32,
    /// The last precreated object id.
    last_id: AtomicU32,
    /// `last_committed` of all replies.
    last_committed: AtomicU64,
    /// The first object of each destroy request.
    pub(crate) destroyed: Mutex<Vec<Fid>>,
    /// Object, user id and group id of each change of an object's owner.
    pub(crate) owners: Mutex<Vec<(Fid, u32, u32)>>,
    /// The last allocated object id in each request for orphan cleanup.
    pub(crate) orphan_cleanups: Mutex<Vec<u32>>,
    /// Object and file of each assignment of an object to a file, with the stripe as the file's
    /// `f_ver`.
    pub(crate) parents: Mutex<Vec<(Fid, Fid)>>,
    /// Object and size of each truncation, and whether a sync followed.
    pub(crate) sizes: Mutex<Vec<(Fid, u64, bool)>>,
    /// Number of statfs requests.
    pub(crate) statfs_requests: AtomicU64,
    /// The time that a statfs takes, and its error.
    pub(crate) statfs_answer: Mutex<(Duration, Result<(), Errno>)>,
}

impl RecordingOst {
    fn new(index: u32) -> Arc<RecordingOst> {
        Arc::new(RecordingOst {
            uuid: format!("testfs-OST{index:04x}_UUID"),
            index,
            last_id: AtomicU32::new(1),
            last_committed: AtomicU64::new(1),
            destroyed: Mutex::default(),
            owners: Mutex::default(),
            orphan_cleanups: Mutex::default(),
            parents: Mutex::default(),
            sizes: Mutex::default(),
            statfs_requests: AtomicU64::new(0),
            statfs_answer: Mutex::new((Duration::ZERO, Ok(()))),
        })
    }

    fn create(&self, oa: &Obdo) -> Reply {
        let fid = oa.o_oi.fid();
        if oa.o_flags & OBD_FL_DELORPHAN != 0 {
            self.orphan_cleanups.lock().push(fid.f_oid);
            self.last_id.store(fid.f_oid, Ordering::SeqCst);
        } else {
            self.last_id.fetch_max(fid.f_oid, Ordering::SeqCst);
        }
        let last = Fid::new(fid.f_seq, self.last_id.load(Ordering::SeqCst), 0);
        Reply::new(vec![
            OstBody {
                oa: Obdo {
                    o_oi: last.into(),
                    ..Obdo::default()
                },
            }
            .to_bytes(),
        ])
    }
}

impl Target for RecordingOst {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        assert_eq!(req.data.ocd_index, self.index);
        Ok(req.data)
    }

    fn last_committed(&self) -> wire::Transno {
        wire::Transno(self.last_committed.load(Ordering::SeqCst))
    }

    fn replayable(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            let seq = 0x2_4000_0400 + (u64::from(self.index) << 30);
            match req.opc {
                SEQ_QUERY => {
                    let range = LuSeqRange {
                        lsr_start: seq,
                        lsr_end: seq + 1,
                        lsr_index: self.index,
                        lsr_flags: LU_SEQ_RANGE_OST,
                    };
                    Ok(Reply::new(vec![range.to_bytes()]))
                }
                OST_CREATE => Ok(self.create(&req.get::<OstBody>(1)?.oa)),
                OST_DESTROY => {
                    self.destroyed.lock().push(req.get::<OstBody>(1)?.oa.o_oi.fid());
                    Ok(Reply::new(vec![OstBody::default().to_bytes()]))
                }
                OST_SETATTR => {
                    let oa = req.get::<OstBody>(1)?.oa;
                    if oa.o_valid & OBD_MD_FLUID != 0 {
                        self.owners.lock().push((oa.o_oi.fid(), oa.o_uid, oa.o_gid));
                    }
                    if oa.o_valid & OBD_MD_FLFID != 0 {
                        let parent = Fid::new(oa.o_parent_seq, oa.o_parent_oid, oa.o_stripe_idx);
                        self.parents.lock().push((oa.o_oi.fid(), parent));
                    }
                    Ok(Reply::new(vec![OstBody::default().to_bytes()]))
                }
                OST_PUNCH => {
                    let oa = req.get::<OstBody>(1)?.oa;
                    assert_eq!(oa.o_blocks, OBD_OBJECT_EOF);
                    self.sizes.lock().push((oa.o_oi.fid(), oa.o_size, false));
                    Ok(Reply::new(vec![OstBody::default().to_bytes()]))
                }
                OST_SYNC => {
                    let object = req.get::<OstBody>(1)?.oa.o_oi.fid();
                    let mut sizes = self.sizes.lock();
                    sizes
                        .iter_mut()
                        .filter(|s| s.0 == object)
                        .for_each(|s| s.2 = true);
                    Ok(Reply::new(vec![OstBody::default().to_bytes()]))
                }
                OST_STATFS => {
                    self.statfs_requests.fetch_add(1, Ordering::SeqCst);
                    let (time, result) = *self.statfs_answer.lock();
                    tokio::time::sleep(time).await;
                    result?;
                    let space = ObdStatfs {
                        os_bsize: 4096,
                        os_blocks: 1000,
                        os_bfree: 500,
                        os_bavail: 400,
                        os_ffree: 1 << 20,
                        ..ObdStatfs::default()
                    };
                    Ok(Reply::new(vec![space.to_bytes()]))
                }
                _ => Err(Errno::ENOTSUPP),
            }
        })
    }

    fn export_gone<'a>(&'a self, _export: &'a Arc<Export>, _why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// A file system with an MDT and several OSTs.
pub(crate) struct Fixture {
    pub(crate) rpc: Arc<Ptlrpc>,
    pub(crate) osts: Vec<Arc<RecordingOst>>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) mdt: Arc<Mdt>,
    pub(crate) params: params::Registry,
    pub(crate) nodemaps: Arc<Nodemaps>,
    pub(crate) capa_keys: Arc<CapaKeyring>,
    config: watch::Sender<Arc<FsConfig>>,
}

impl Fixture {
    /// An MDT on a new store, with this number of OSTs.
    pub(crate) async fn new(ost_count: u32) -> Fixture {
        let index = slow_index::index(Arc::new(MemoryIndex::default()));
        Fixture::with_index(ost_count, index).await
    }

    /// An MDT on an index, with this number of OSTs.
    pub(crate) async fn with_index(ost_count: u32, index: Arc<dyn Index>) -> Fixture {
        let rpc = rpc_node::node(7);
        let osts: Vec<_> = (0..ost_count).map(RecordingOst::new).collect();
        for ost in &osts {
            rpc.add_target(ost.clone());
        }
        let config = watch::Sender::new(Arc::new(config_of(&osts)));
        let params = params::Registry::default();
        let nodemaps = Arc::<Nodemaps>::default();
        let keys = CapaKeys::default().rotated([1; 32]);
        let capa_keys = Arc::new(CapaKeyring::new(keys));
        let mdt = Mdt::start_on(
            rpc.clone(),
            index.clone(),
            config.subscribe(),
            mdt_config(&params, &nodemaps, &capa_keys),
        )
        .await
        .unwrap();
        Fixture {
            rpc,
            osts,
            index,
            mdt,
            params,
            nodemaps,
            capa_keys,
            config,
        }
    }

    pub(crate) async fn client(&self) -> Arc<Client> {
        Client::connect(&self.rpc).await
    }

    /// Connects a client that keeps its own locks ([`LockTerms::Nacre`]).
    pub(crate) async fn client_with_own_locks(&self) -> Arc<Client> {
        Client::connect_with_terms(&self.rpc, Nid::LO, MDT, LockTerms::Nacre).await
    }

    /// Puts this node's clients into a nodemap with these properties. By default, all users keep
    /// their ids.
    pub(crate) fn map_clients(&self, properties: &[(&str, &str)]) {
        let mut table = NodemapTable::default();
        table.add("here").unwrap();
        table.add_range("here", "0@lo").unwrap();
        for (property, value) in [("admin", "1"), ("trusted", "1")].iter().chain(properties) {
            table.modify("here", property, value).unwrap();
        }
        self.nodemaps.set(table);
    }

    /// Adds an OST to the file system.
    pub(crate) fn add_ost(&mut self) {
        let ost = RecordingOst::new(self.osts.len() as u32);
        self.rpc.add_target(ost.clone());
        self.osts.push(ost);
        self.config.send_replace(Arc::new(config_of(&self.osts)));
    }

    /// Stops the target cleanly and starts it again.
    pub(crate) async fn restart(&mut self) {
        self.mdt.stop().await;
        self.start_again().await;
    }

    /// Removes the target without a stop, like a crash, and starts it again on its store.
    pub(crate) async fn crash(&mut self) {
        self.rpc.remove_target(self.mdt.uuid()).await;
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        let config = self.config.subscribe();
        let index = self.index.clone();
        self.mdt = Mdt::start_on(
            self.rpc.clone(),
            index,
            config,
            mdt_config(&self.params, &self.nodemaps, &self.capa_keys),
        )
        .await
        .unwrap();
    }
}

fn mdt_config(
    params: &params::Registry,
    nodemaps: &Arc<Nodemaps>,
    capa_keys: &Arc<CapaKeyring>,
) -> MdtConfig {
    MdtConfig {
        clock: Default::default(),
        locks: Arc::default(),
        nodemaps: nodemaps.clone(),
        capa_keys: capa_keys.clone(),
        fsname: "testfs".into(),
        index: 0,
        seed: 7,
        params: params.clone(),
    }
}

fn config_of(osts: &[Arc<RecordingOst>]) -> FsConfig {
    let target = |ost: &Arc<RecordingOst>| TargetConf {
        name: ost.uuid.trim_end_matches("_UUID").to_owned(),
        index: ost.index,
        uuid: ost.uuid.clone(),
        nids: vec![Nid::LO],
        active: true,
    };
    FsConfig {
        fsname: "testfs".into(),
        osts: osts.iter().map(target).collect(),
        ..FsConfig::default()
    }
}

/// Waits until a condition is true. Panics if it is still false after a minute.
pub(crate) async fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("timeout: the condition is still false");
}
