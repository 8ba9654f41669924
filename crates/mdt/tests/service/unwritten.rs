//! Tests of the creator's bit of unwritten files (`LockTerms::Nacre`): while the creator of a file
//! holds the bit, no other client has written to the file.

use std::sync::Arc;

use mdt::store::keys;
use tokio::{runtime::Handle, sync::oneshot, task::block_in_place};
use wire::{
    Fid, INODELOCK_UNWRITTEN as UNWRITTEN, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_BY_FID, MDS_OPEN_CREAT,
};

use crate::fixture::Fixture;
use testbase::{InstrumentedIndex, mds_client::Client};

const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE | MDS_FMODE_READ;
const WRITE_BY_FID: u64 = MDS_OPEN_BY_FID | MDS_FMODE_WRITE;
const ROUNDS: u32 = 20;

/// Whether the client's bit of unwritten files was revoked.
fn mark_is_revoked(client: &Client, file: Fid) -> bool {
    let revoked = client.revoked.lock();
    revoked
        .iter()
        .any(|(fid, bits)| *fid == file && bits & UNWRITTEN != 0)
}

#[tokio::test]
async fn open_for_write_revokes_the_creators_mark() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client_with_own_locks().await, f.client_with_own_locks().await);
    for (name, other) in [("own", &a), ("other", &b)] {
        let created = a.open(Fid::ROOT, name, CREATE).await;
        assert_eq!(created.bits & UNWRITTEN, UNWRITTEN);
        assert_eq!(other.open(Fid::ROOT, name, MDS_FMODE_WRITE).await.status, 0);
        assert!(mark_is_revoked(&a, created.fid()));
    }
}

/// The second client opens the file by its FID, so the creator's lock of the name does not stop it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_for_write_before_the_creators_reply_revokes_its_dom_bit() {
    let index = Arc::new(InstrumentedIndex::default());
    let f = Fixture::with_index(1, index.clone()).await;
    let (a, b) = (f.client_with_own_locks().await, f.client_with_own_locks().await);
    // Counts the locks on the MDT.
    let count_locks = {
        let params = f.params.clone();
        move || -> u64 {
            let counts = params.get("ldlm.namespaces.mdt-*.lock_count");
            counts.iter().map(|(_, n)| n.trim().parse::<u64>().unwrap()).sum()
        }
    };
    for n in 1..=ROUNDS {
        let file = Fid::new(a.seq, n, 0);
        let (sender, open_status) = oneshot::channel();
        let (creator, b, runtime) = (a.clone(), b.clone(), Handle::current());
        let count_locks = count_locks.clone();
        index.when_visible(keys::inode(file), move || {
            let before = count_locks();
            runtime.spawn(async move { sender.send(b.open(file, "", WRITE_BY_FID).await.status) });
            // Wait until the open has revoked the bit or, without a conflict, was granted a lock.
            block_in_place(|| {
                while count_locks() == before && !mark_is_revoked(&creator, file) {
                    std::thread::yield_now();
                }
            });
        });
        let created = a.open(Fid::ROOT, &format!("file{n}"), CREATE).await;
        assert_eq!((created.status, created.fid()), (0, file));
        assert_eq!(open_status.await, Ok(0));
        assert!(created.bits & UNWRITTEN == 0 || mark_is_revoked(&a, file));
    }
}
