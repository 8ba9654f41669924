//! Restarts of a target, and replays of its client's requests.

mod fixture;

use std::sync::Arc;

use osd::Stores;
use ost::Ost;
use rpc::Target;
use wire::{
    Errno, Fid, LustreCapa, OBD_MD_FLFID, OBD_MD_FLUID, OST_DESTROY, OST_GETATTR, OST_SETATTR, OST_SYNC,
    Obdo, Transno,
};

use crate::fixture::{Client, Node, obdo};
use crate::rights::capabilities::{ALL, now, signed_capa, unsigned_capa};
use crate::with_object;
use fixture::{CLIENT, Replay, Returning, SharedStore};

const PARENT: Fid = Fid::new(0x2_0000_0400, 1, 0);

/// A target with a client that may recover, an object, and the number of the first request that the
/// client may replay.
struct Restarted {
    node: Node,
    ost: Arc<Ost>,
    osp: Arc<Client>,
    fid: Fid,
    first: Transno,
}

impl Restarted {
    async fn start(store: &dyn Stores, fid: Fid) -> Restarted {
        let node = Node::new();
        let ost = node.ost(store).await;
        Restarted {
            osp: node.osp().await,
            first: Transno(ost.last_committed().0 + 1),
            ost,
            node,
            fid,
        }
    }

    /// A first start of a target, and a second one after a kill.
    async fn new(store: &SharedStore) -> Restarted {
        let first = Restarted::start(store, Fid::ZERO).await;
        let seq = first.osp.wait_for_sequence().await;
        first.osp.create(seq, 32, false).await.unwrap();
        store.remember_client().await;
        Restarted::start(store, Fid::new(seq, 1, 0)).await
    }

    fn transno(&self, n: u64) -> Transno {
        Transno(self.first.0 + n)
    }

    /// The bytes of the object, of which the MDT reads a page at a time.
    async fn data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        for offset in (0..self.attr().await.o_size).step_by(4096) {
            data.extend(self.osp.read(self.fid, offset, 4096).await);
        }
        data
    }

    async fn attr(&self) -> Obdo {
        self.osp.call_body(OST_GETATTR, obdo(self.fid)).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn replays_in_order_restore_the_object() {
    for loses_data in [false, true] {
        let store = SharedStore::new();
        let fid = {
            let first = Restarted::new(&store).await;
            first.ost.recovered().await;
            first.fid
        };
        // The client's changes, which are not committed when the target is killed.
        let changes = [
            Replay::write(fid, 0, &[7; 5000]),
            Replay::truncate(fid, 100),
            Replay::write(fid, 4090, b"later"),
            Replay::allocate(fid, 4000, 9000),
            Replay::write(fid, 90, b"last"),
        ];
        let killed = Restarted::start(&store, fid).await;
        let client = Returning::connect(&killed.node, 0).await;
        for (n, change) in changes.iter().enumerate() {
            client.replays(killed.transno(n as u64), change).await;
        }
        let before = (killed.attr().await, killed.data().await);
        assert_eq!((before.0.o_size, before.1.len()), (9000, 9000));

        let store = match loses_data {
            true => store.without_objects(),
            false => store,
        };
        let restarted = Restarted::start(&store, fid).await;
        assert_eq!(restarted.first, killed.first);
        let client = Returning::connect(&restarted.node, 0).await;
        for (n, change) in changes.iter().enumerate() {
            client.replays(restarted.transno(n as u64), change).await;
            assert!(restarted.ost.last_committed() < restarted.first);
        }
        let attr = restarted.attr().await;
        assert_eq!(attr.o_size, before.0.o_size);
        assert_eq!(attr.o_data_version, restarted.transno(4).0);
        assert_eq!(attr.o_uid, 1000);
        assert_eq!(restarted.data().await, before.1);
        restarted.ost.recovered().await;
        assert!(restarted.ost.last_committed() > restarted.transno(1 << 32));
        let refused = client.replay(restarted.first, &changes[0]).await;
        assert!(refused.pb_transno != restarted.first.0, "the recovery has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn restart_during_a_recovery_begins_it_again() {
    let store = SharedStore::new();
    let restarted = Restarted::new(&store).await;
    let (fid, first) = (restarted.fid, restarted.first);
    let change = Replay::write(fid, 0, b"data");
    for _ in 0..2 {
        let again = Restarted::start(&store, fid).await;
        assert_eq!(again.first, first);
        assert_eq!(again.ost.known_clients().len(), 1);
        let client = Returning::connect(&again.node, 0).await;
        client.replays(first, &change).await;
        // The changes of an MDT do not change the committed number either.
        again.osp.create(fid.f_seq, 64, false).await.unwrap();
        again.osp.call_body(OST_SYNC, obdo(fid)).await.unwrap();
        again.osp.call_body(OST_SYNC, Obdo::default()).await.unwrap();
        assert!(again.ost.last_committed() < first);
        again.ost.stop().await.unwrap();
    }
    let last = Restarted::start(&store, fid).await;
    last.ost.recovered().await;
    let committed = last.ost.last_committed();
    assert!(committed > first);
    last.ost.stop().await.unwrap();
    assert_eq!(
        Restarted::start(&store, fid).await.ost.last_committed(),
        committed
    );
}

#[tokio::test(start_paused = true)]
async fn record_of_a_client_stays_until_the_client_goes() {
    let store = SharedStore::new();
    let restarted = Restarted::new(&store).await;
    Returning::connect(&restarted.node, 0).await;
    restarted.ost.stop().await.unwrap();
    let restarted = Restarted::start(&store, restarted.fid).await;
    assert_eq!(restarted.ost.known_clients()[0].uuid, CLIENT);
    let client = Returning::connect(&restarted.node, 0).await;
    client.disconnect().await;
    let restarted = Restarted::start(&store, restarted.fid).await;
    assert_eq!(restarted.ost.known_clients().len(), 0);

    store.remember_client().await;
    let restarted = Restarted::start(&store, restarted.fid).await;
    restarted.ost.forget_client(CLIENT);
    let restarted = Restarted::start(&store, restarted.fid).await;
    assert_eq!(restarted.ost.known_clients().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn replay_under_a_wrong_number_fails() {
    let restarted = Restarted::new(&SharedStore::new()).await;
    let client = Returning::connect(&restarted.node, 0).await;
    let change = Replay::write(restarted.fid, 0, b"data");
    let committed = restarted.ost.last_committed();
    for transno in [Transno::NONE, committed, restarted.transno(5 << 32)] {
        assert_eq!(client.fails_to_replay(transno, &change).await, Errno::EINVAL);
    }
    assert_eq!(restarted.attr().await.o_size, 0);
}

#[tokio::test(start_paused = true)]
async fn replay_creates_an_object_whose_record_is_lost() {
    let restarted = Restarted::new(&SharedStore::new()).await;
    let seq = restarted.fid.f_seq;
    let client = Returning::connect(&restarted.node, 0).await;
    let lost = Replay::write(Fid::new(seq, 40, 0), 0, b"data");
    client.replays(restarted.transno(0), &lost).await;
    let far_above = Replay::write(Fid::new(seq, 40_000, 0), 0, b"data");
    let refused = client.fails_to_replay(restarted.transno(1), &far_above).await;
    assert_eq!(refused, Errno::ENOENT);
    // The MDT uses the object, and gets no object twice.
    assert_eq!(restarted.osp.create(seq, 40, true).await.unwrap(), 40);
    assert_eq!(restarted.osp.read(Fid::new(seq, 40, 0), 0, 9).await, b"data");
}

#[tokio::test(start_paused = true)]
async fn mdts_requests_before_the_replays_stay_in_force() {
    let restarted = Restarted::new(&SharedStore::new()).await;
    let (fid, osp) = (restarted.fid, &restarted.osp);
    let client = Returning::connect(&restarted.node, 0).await;
    // The object belongs to another file and another user now.
    let given = Obdo {
        o_valid: obdo(fid).o_valid | OBD_MD_FLUID | OBD_MD_FLFID,
        o_uid: 77,
        o_parent_seq: PARENT.f_seq,
        o_parent_oid: 9,
        ..obdo(fid)
    };
    osp.call_body(OST_SETATTR, given).await.unwrap();
    let write = Replay::write(fid, 0, b"data").with_parent(PARENT);
    client.replays(restarted.transno(0), &write).await;
    assert_eq!(osp.read(fid, 0, 9).await, b"data");
    assert_eq!(restarted.attr().await.o_uid, 77);
    // A replay does not create a destroyed object again.
    osp.call_body(OST_DESTROY, obdo(fid)).await.unwrap();
    let refused = client.fails_to_replay(restarted.transno(1), &write).await;
    assert_eq!(refused, Errno::ENOENT);
    assert_eq!(restarted.attr().await.o_size, 0);
}

#[tokio::test(start_paused = true)]
async fn replay_needs_no_grant() {
    let store = SharedStore::new();
    let restarted = Restarted::new(&store).await;
    let free = store.index.space().avail_bytes();
    let reported = u32::try_from(free).unwrap();
    let client = Returning::connect(&restarted.node, reported).await;
    assert_eq!(client.grant_bytes, reported);
    // The grant of the client no longer has the space of the replay.
    let write = Replay::write(restarted.fid, 0, &[1; 4096]).with_used_grant(4096);
    client.replays(restarted.transno(0), &write).await;
}

/// Lustre's client does not copy the pages that it may have to replay. A program may have changed
/// them since, and the client neither computes the checksum again nor checks the one in the reply.
#[tokio::test(start_paused = true)]
async fn replayed_data_may_differ_from_its_checksum() {
    let store = SharedStore::new();
    let restarted = Restarted::new(&store).await;
    let client = Returning::connect(&restarted.node, 0).await;
    let write = Replay::write(restarted.fid, 0, &[7; 4096]).with_wrong_checksum();
    client.replays(restarted.transno(0), &write).await;
    assert_eq!(restarted.data().await, [7; 4096]);
}

#[tokio::test(start_paused = true)]
async fn capability_may_expire_before_the_replay() {
    let restarted = Restarted::new(&SharedStore::new()).await;
    let (node, fid) = (&restarted.node, restarted.fid);
    node.set_nodemap_property("capabilities", "1");
    let client = Returning::connect(node, 0).await;
    let expired = LustreCapa {
        lc_expiry: now() - 100,
        ..unsigned_capa(fid, ALL)
    };
    let write = Replay::write(fid, 0, b"data");
    let with = |capability| write.clone().with_capability(capability);
    let others = signed_capa(node, "client-b", unsigned_capa(fid, ALL));
    let refused = client.fails_to_replay(restarted.first, &with(others)).await;
    assert_eq!(refused, Errno::EACCES);
    // The target does not have the key yet.
    let capability = signed_capa(node, CLIENT, expired);
    let keys = node.capa_keys.keys();
    node.capa_keys.set(Default::default());
    let (ring, replayed) = (node.capa_keys.clone(), with(capability));
    let replay = client.replays(restarted.first, &replayed);
    let arrival = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        ring.set(keys);
    };
    tokio::join!(replay, arrival);
}

#[tokio::test(start_paused = true)]
async fn sync_after_changes_of_two_clients_commits_both() {
    let (node, ost, _osp, a, fid) = with_object().await;
    let b = node.client("client-b").await;
    let alone = a.write(fid, 0, b"a").await;
    a.call_body(OST_SYNC, obdo(fid)).await.unwrap();
    assert!(ost.last_committed().0 < alone);
    b.write(fid, 0, b"b").await;
    b.call_body(OST_SYNC, obdo(fid)).await.unwrap();
    assert!(ost.last_committed().0 > alone);
}
