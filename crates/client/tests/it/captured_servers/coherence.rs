//! Which lock of which MDT covers which cached state of directories on several MDTs.

use crate::captured_servers::scenario_run::ScenarioRun;
use crate::captured_servers::scenarios::mdts::{mkdir, on_mdt, stripes};
use crate::captured_servers::server::Lock;
use client::KernelCache;
use cpt::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;
use wire::{Fid, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE};

const ATTRIBUTES: u64 = MDS_INODELOCK_UPDATE | MDS_INODELOCK_PERM;
/// The stripe of `sdir` on MDT0001.
const STRIPE: Fid = Fid::new(0x2_8000_0401, 4, 0);

/// Our client's lock on a file with one of these bits.
fn lock(run: &ScenarioRun, fid: Fid, bits: u64) -> Lock {
    let state = run.server.state.lock();
    let is_meant = |l: &&Lock| {
        Fid::from_res_id(&l.desc.l_resource.lr_name) == fid && l.desc.l_policy_data.0[0] & bits != 0
    };
    state.locks.iter().rev().find(is_meant).copied().unwrap()
}

/// The number of metadata requests that a walk to this path sends.
async fn requests_of_walk(run: &ScenarioRun, path: &str) -> usize {
    let sent = || run.server.state.lock().metadata_requests;
    let before = sent();
    run.fid(path).await;
    sent() - before
}

/// Records the invalidations of names and attributes.
#[derive(Default)]
struct Invalidations {
    names: Mutex<Vec<(Fid, Vec<u8>)>>,
    attributes: Mutex<Vec<Fid>>,
}

impl KernelCache for Invalidations {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], _child: Fid) -> BoxFuture<'a, ()> {
        self.names.lock().push((parent, name.to_vec()));
        Box::pin(async {})
    }

    fn inval_inode(&self, fid: Fid, _offset: i64, _len: i64) -> BoxFuture<'_, ()> {
        self.attributes.lock().push(fid);
        Box::pin(async {})
    }
}

/// Makes the striped directory `sdir` on a mount that records its invalidations.
async fn mount_with_striped_dir() -> (ScenarioRun, Arc<Invalidations>, Fid) {
    let run = ScenarioRun::mount("m2_striped_dir").await;
    let kernel = Arc::<Invalidations>::default();
    run.client.set_kernel(kernel.clone());
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let dir = mkdir(&run, "sdir", stripes(2)).await;
    (run, kernel, dir)
}

#[tokio::test(start_paused = true)]
async fn the_mdt_of_a_name_and_the_mdt_of_its_directory_revoke_different_state() {
    let run = ScenarioRun::mount("m1_remote_dir").await;
    let root = run.client.root();
    run.client.getattr(&run.cred, root).await.unwrap();
    let dir = mkdir(&run, "rdir", on_mdt(1)).await;
    assert_eq!(requests_of_walk(&run, "rdir").await, 0);
    let (name, attributes) = (lock(&run, dir, MDS_INODELOCK_LOOKUP), lock(&run, dir, ATTRIBUTES));
    assert_ne!(name.connection, attributes.connection);
    run.server.revoke(name, MDS_INODELOCK_LOOKUP).await;
    assert_eq!(
        requests_of_walk(&run, "rdir").await,
        1,
        "the attributes stay cached"
    );
    run.server.revoke(attributes, ATTRIBUTES).await;
    assert_eq!(requests_of_walk(&run, "rdir").await, 1, "the name stays cached");
    assert_eq!(requests_of_walk(&run, "rdir").await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_stripes_lock_invalidates_the_whole_directory() {
    let (run, kernel, dir) = mount_with_striped_dir().await;
    // The captured lookup returned no lock on the size and times.
    run.fid("sdir").await;
    assert_eq!(requests_of_walk(&run, "sdir").await, 0);
    kernel.attributes.lock().clear();
    run.server
        .revoke(lock(&run, STRIPE, ATTRIBUTES), ATTRIBUTES)
        .await;
    assert_eq!(
        *kernel.attributes.lock(),
        [dir],
        "the kernel does not know stripes"
    );
    assert_eq!(
        requests_of_walk(&run, "sdir").await,
        1,
        "only that stripe is read again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_name_in_a_stripe_is_invalidated_in_the_whole_directory() {
    let (run, kernel, dir) = mount_with_striped_dir().await;
    let file = run.create(dir, "s1").await;
    run.client.release(&file).await.unwrap();
    kernel.names.lock().clear();
    run.server
        .revoke(lock(&run, file.fid, MDS_INODELOCK_LOOKUP), MDS_INODELOCK_LOOKUP)
        .await;
    assert_eq!(*kernel.names.lock(), [(dir, b"s1".to_vec())]);
}
