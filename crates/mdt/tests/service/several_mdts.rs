//! Several MDTs of a file system: their sequences and ranges, and their connections to each other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mdt::{Mdt, MdtConfig, MdtError};
use mgc::{FsConfig, TargetConf};
use osd::{Batch, Index, MemoryIndex};
use rpc::Ptlrpc;
use testbase::{mds_client::Client, rpc_node};
use tokio::{sync::watch, time::timeout};
use wire::{
    Errno, FID_SEQ_ROOT, FLD_LOOKUP, FLD_QUERY, Fid, LMV_USER_MAGIC, LUSTRE_SEQ_SUPER_WIDTH, LmvUserMdV1,
    LuSeqRange, MDS_GETATTR, MDS_REINT, MdtBody, MdtRecCreate, Nid, REINT_CREATE, WireStruct,
};

use crate::fixture::wait_until;

/// The first sequence that MDT0000 gives to a server.
const FIRST: u64 = 0x2_0000_0400;

/// The MDTs, their stores, and their parameters.
pub(crate) struct Mdts {
    rpc: Arc<Ptlrpc>,
    pub(crate) params: params::Registry,
    stores: Vec<Arc<dyn Index>>,
    config: watch::Sender<Arc<FsConfig>>,
    mdts: Vec<Option<Arc<Mdt>>>,
}

fn uuid(index: usize) -> String {
    format!("testfs-MDT{index:04x}_UUID")
}

fn mdt_conf(index: usize) -> TargetConf {
    TargetConf {
        name: uuid(index).trim_end_matches("_UUID").to_owned(),
        index: index as u32,
        uuid: uuid(index),
        nids: vec![Nid::LO],
        active: true,
    }
}

impl Mdts {
    fn none() -> Mdts {
        let config = FsConfig {
            fsname: "testfs".into(),
            ..FsConfig::default()
        };
        Mdts {
            rpc: rpc_node::node(7),
            params: params::Registry::default(),
            stores: Vec::new(),
            config: watch::Sender::new(Arc::new(config)),
            mdts: Vec::new(),
        }
    }

    /// As many MDTs as `count`, connected to each other.
    pub(crate) async fn start(count: usize) -> Mdts {
        let mut mdts = Mdts::none();
        for _ in 0..count {
            mdts.add().await;
        }
        mdts.wait_connected().await;
        mdts
    }

    async fn add(&mut self) {
        let index = self.mdts.len();
        self.config
            .send_modify(|config| Arc::make_mut(config).mdts.push(mdt_conf(index)));
        self.stores.push(Arc::new(MemoryIndex::default()));
        self.mdts.push(None);
        self.start_mdt(index).await.unwrap();
    }

    pub(crate) async fn start_mdt(&mut self, index: usize) -> Result<(), MdtError> {
        let config = MdtConfig {
            clock: Default::default(),
            locks: Arc::default(),
            nodemaps: Arc::default(),
            capa_keys: Arc::default(),
            fsname: "testfs".into(),
            index: index as u32,
            seed: 7 + index as u64,
            params: self.params.clone(),
        };
        let (store, log) = (self.stores[index].clone(), self.config.subscribe());
        self.mdts[index] = Some(Mdt::start_on(self.rpc.clone(), store, log, config).await?);
        Ok(())
    }

    pub(crate) async fn stop_mdt(&mut self, index: usize) {
        self.mdts[index].take().unwrap().stop().await;
    }

    /// Whether each MDT that runs is connected to each other one.
    fn are_connected(&self) -> bool {
        let running = || (0..self.mdts.len()).filter(|index| self.mdts[*index].is_some());
        running().all(|own| {
            running().filter(|index| *index != own).all(|other| {
                let name = format!("osp.testfs-MDT{other:04x}-osp-MDT{own:04x}.state");
                let values = self.params.get(&name);
                values
                    .iter()
                    .any(|(_, text)| text.contains("current_state: FULL"))
            })
        })
    }

    pub(crate) async fn wait_connected(&self) {
        wait_until(|| self.are_connected()).await;
    }

    pub(crate) async fn client(&self, index: usize) -> Arc<Client> {
        Client::connect_to(&self.rpc, Nid::LO, &uuid(index)).await
    }
}

/// The answer to FLD_LOOKUP: start, end and MDT.
async fn locate(client: &Client, seq: u64) -> Result<(u64, u64, u32), Errno> {
    let range = LuSeqRange {
        lsr_start: seq,
        ..LuSeqRange::default()
    };
    let opc = Bytes::copy_from_slice(&FLD_LOOKUP.to_le_bytes());
    let reply = client.call(FLD_QUERY, vec![opc, range.to_bytes()]).await?;
    let range: LuSeqRange = reply.get(1).unwrap();
    Ok((range.lsr_start, range.lsr_end, range.lsr_index))
}

#[tokio::test(start_paused = true)]
async fn each_mdt_allocates_from_its_own_range_and_all_know_all_ranges() {
    let mdts = Mdts::start(3).await;
    let mut seqs = Vec::new();
    for index in 0..3 {
        let client = mdts.client(index).await;
        seqs.push(client.new_fid().f_seq);
    }
    let mut ranges = Vec::new();
    for (index, seq) in (0..).zip(&seqs) {
        let mut answers = Vec::new();
        for asked in 0..3 {
            answers.push(locate(&*mdts.client(asked).await, *seq).await.unwrap());
        }
        let (start, end, owner) = answers[0];
        assert_eq!(answers, [answers[0]; 3]);
        assert_eq!((owner, end - start), (index, LUSTRE_SEQ_SUPER_WIDTH));
        assert!((start..end).contains(seq) && start >= FIRST);
        ranges.push(start);
    }
    ranges.sort_unstable();
    ranges.dedup();
    assert_eq!(ranges.len(), 3);
    for asked in 0..3 {
        let client = mdts.client(asked).await;
        assert_eq!(locate(&client, FID_SEQ_ROOT).await.unwrap().2, 0);
        assert_eq!(locate(&client, 1 << 40).await, Err(Errno::ENOENT));
    }
}

#[tokio::test(start_paused = true)]
async fn only_mdt0000_has_a_root_directory() {
    let mdts = Mdts::start(2).await;
    let root_of = async |index| {
        let body = MdtBody {
            mbo_fid1: Fid::ROOT,
            ..MdtBody::default()
        };
        let client = mdts.client(index).await;
        client
            .call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()])
            .await
            .err()
    };
    assert_eq!(root_of(0).await, None);
    assert_eq!(root_of(1).await, Some(Errno::ENOENT));
}

#[tokio::test(start_paused = true)]
async fn directories_with_several_stripes_are_refused() {
    let mdts = Mdts::start(2).await;
    let mkdir = async |stripes| {
        let client = mdts.client(0).await;
        let rec = MdtRecCreate {
            cr_opcode: REINT_CREATE,
            cr_cap: u32::MAX,
            cr_fid1: Fid::ROOT,
            cr_fid2: client.new_fid(),
            cr_mode: 0o040755,
            ..MdtRecCreate::default()
        };
        let layout = LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_count: stripes,
            ..LmvUserMdV1::default()
        };
        let name = wire::nul_terminated(format!("d{stripes}").as_bytes());
        let bufs = vec![rec.to_bytes(), Bytes::new(), name, layout.to_bytes()];
        client.modify(MDS_REINT, bufs).await.err()
    };
    assert_eq!(mkdir(1).await, None);
    assert_eq!(mkdir(2).await, Some(Errno::EOPNOTSUPP));
}

#[tokio::test(start_paused = true)]
async fn other_mdts_serve_clients_while_mdt0000_is_down() {
    let mut mdts = Mdts::start(3).await;
    let seq_of_mdt0 = mdts.client(0).await.new_fid().f_seq;
    let client = mdts.client(1).await;
    let own = client.new_fid().f_seq;
    assert_eq!(locate(&client, seq_of_mdt0).await.unwrap().2, 0);
    mdts.stop_mdt(0).await;
    // MDT0002 has not told MDT0001 of its range before.
    let seq_of_mdt2 = mdts.client(2).await.new_fid().f_seq;
    for restarts in [false, true] {
        if restarts {
            mdts.stop_mdt(1).await;
            mdts.start_mdt(1).await.unwrap();
            mdts.wait_connected().await;
        }
        let client = mdts.client(1).await;
        assert!(client.new_fid().f_seq > own);
        let found = [
            locate(&client, own).await.unwrap().2,
            locate(&client, seq_of_mdt0).await.unwrap().2,
            locate(&client, seq_of_mdt2).await.unwrap().2,
        ];
        assert_eq!(found, [1, 0, 2], "restarts: {restarts}");
    }
    mdts.start_mdt(0).await.unwrap();
    mdts.wait_connected().await;
    assert_eq!(locate(&*mdts.client(0).await, own).await.unwrap().2, 1);
}

#[tokio::test(start_paused = true)]
async fn an_mdt_needs_only_one_super_sequence_for_many_starts() {
    let mut mdts = Mdts::start(2).await;
    let start = async |mdts: &Mdts| {
        let client = mdts.client(1).await;
        locate(&client, client.new_fid().f_seq).await.unwrap().0
    };
    let first = start(&mdts).await;
    for _ in 0..20 {
        mdts.stop_mdt(1).await;
        mdts.start_mdt(1).await.unwrap();
    }
    assert_eq!(start(&mdts).await, first);
}

#[tokio::test(start_paused = true)]
async fn an_mdt_waits_for_its_super_sequence_until_mdt0000_runs() {
    let mut mdts = Mdts::start(1).await;
    mdts.stop_mdt(0).await;
    mdts.add().await;
    let (rpc, mdt1) = (mdts.rpc.clone(), uuid(1));
    let connecting = Client::connect_to(&rpc, Nid::LO, &mdt1);
    tokio::pin!(connecting);
    let early = timeout(Duration::from_secs(20), &mut connecting).await;
    assert!(early.is_err(), "the client waits");
    mdts.start_mdt(0).await.unwrap();
    assert!(connecting.await.new_fid().f_seq >= FIRST);
}

#[tokio::test(start_paused = true)]
async fn an_mdt_refuses_the_store_of_another_one_and_one_that_lost_its_records() {
    let mut mdts = Mdts::start(3).await;
    for index in 1..3 {
        mdts.stop_mdt(index).await;
    }
    mdts.stores.swap(1, 2);
    let swapped = mdts.start_mdt(1).await.err().unwrap();
    assert!(matches!(swapped, MdtError::NoIndex { .. }), "{swapped}");
    let mut batch = Batch::new();
    batch.delete_twice(&b"mmdt.index"[..]);
    mdts.stores[2].apply(batch).unwrap();
    let lost = mdts.start_mdt(2).await.err().unwrap();
    assert!(matches!(lost, MdtError::NoIndex { .. }), "{lost}");
}
