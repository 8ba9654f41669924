//! Several threads change one directory, each with its own names, or one inode. No change is lost,
//! and the directory's times and version never decrease.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};
use testbase::Wait;

use osd::{LocalStores, MemoryIndex, Stores};
use wire::{Fid, MDS_FMODE_READ, Transno};

use super::{Fixture, ROOT, check};
use crate::store::Store;

const THREADS: u32 = 4;
const ROUNDS: u32 = 60;
/// Number of FIDs for each thread; the main thread has the first ones.
const FIDS_PER_THREAD: u32 = 1 << 16;

/// Runs the operations of one thread in round `n`; a file and a subdirectory remain. Returns the
/// transaction number of the last operation.
pub(super) fn run_round(f: &mut Fixture, dir: Fid, thread: u32, n: u32) -> Transno {
    let name = |kind: &str| format!("{kind}.{thread}.{n}");
    let file = f.file(dir, &name("file"));
    f.dir(dir, &name("stays"));
    f.dir(dir, &name("goes"));
    f.link(file, dir, &name("link")).unwrap();
    f.rename((dir, &name("link")), (dir, &name("renamed"))).unwrap();
    f.rename((dir, &name("stays")), (dir, &name("moved"))).unwrap();
    f.rmdir(dir, &name("goes")).unwrap();
    f.unlink(dir, &name("file")).unwrap().transno
}

fn check_that_changes_add_up(store: Store) {
    let mut f = Fixture::with_store(store);
    let dir = f.dir(ROOT, "d");
    // The threads' reads of a local index need a runtime.
    let runtime = tokio::runtime::Handle::current();
    let changes_are_done = AtomicBool::new(false);
    // The last transaction number and the last time of each thread.
    let results = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let _guard = runtime.enter();
            let mut old = f.inode(dir);
            while !changes_are_done.load(SeqCst) {
                let new = f.inode(dir);
                assert!(new.version >= old.version && new.mtime >= old.mtime && new.ctime >= old.ctime);
                old = new;
            }
        });
        let work = |thread: u32| {
            let mut f = f.another_user(FIDS_PER_THREAD * (thread + 1));
            let runtime = runtime.clone();
            move || {
                let _guard = runtime.enter();
                let transno = (0..ROUNDS)
                    .map(|n| run_round(&mut f, dir, thread, n))
                    .max()
                    .unwrap();
                (transno, f.time)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(work(t))).collect();
        let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        changes_are_done.store(true, SeqCst);
        watcher.join().unwrap();
        results
    });
    let inode = f.inode(dir);
    assert_eq!(inode.nlink, 2 + THREADS * ROUNDS);
    assert_eq!(
        Some(Transno(inode.version)),
        results.iter().map(|(transno, _)| *transno).max()
    );
    assert_eq!(Some(inode.mtime), results.iter().map(|(_, time)| *time).max());
    assert_eq!(inode.mtime, inode.ctime);
    check::assert_consistent(&f.store);
    // The cached inode equals the stored one.
    f.store.inode_cache().clear();
    assert_eq!(f.inode(dir), inode);
}

#[tokio::test]
async fn concurrent_changes_of_a_directory_add_up_in_memory() {
    check_that_changes_add_up(Store::new(std::sync::Arc::new(MemoryIndex::default())));
}

#[tokio::test]
async fn concurrent_changes_of_a_directory_add_up_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let kind = LocalStores::in_dir(dir.path());
    check_that_changes_add_up(Store::new(kind.open_index().await.unwrap()));
}

#[test]
fn concurrent_changes_of_an_inode_are_not_lost() {
    let mut f = Fixture::new();
    let (dir, file) = (f.dir(ROOT, "d"), f.file(ROOT, "file"));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut f = f.another_user(FIDS_PER_THREAD * (thread + 1));
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    f.link(file, dir, &format!("link.{thread}.{n}")).unwrap();
                    let name = format!("user.{thread}.{n}");
                    f.setxattr(file, name.as_bytes(), Some(b"x"), 0).unwrap();
                    f.open(file, MDS_FMODE_READ).unwrap();
                }
            });
        }
    });
    assert_eq!(f.inode(file).nlink, 1 + THREADS * ROUNDS);
    assert_eq!(
        f.store.xattrs(file).wait().unwrap().len() as u32,
        THREADS * ROUNDS
    );
    assert_eq!(f.store.open_counts(file).total, THREADS * ROUNDS);
    check::assert_consistent(&f.store);
}

#[test]
fn concurrent_last_unlink_and_last_close_destroy_the_file_once() {
    let mut f = Fixture::new();
    for n in 0..500 {
        let file = f.file(ROOT, "file");
        f.open(file, MDS_FMODE_READ).unwrap();
        let closer = f.another_user(0);
        thread::scope(|scope| {
            scope.spawn(|| closer.close(file, MDS_FMODE_READ));
            f.unlink(ROOT, "file").unwrap();
        });
        assert_eq!(f.store.find(file).wait().unwrap(), None);
        assert_eq!(f.store.orphans(None).wait().unwrap(), []);
        assert_eq!(f.queued_work(), n + 1, "the file's object is destroyed once");
    }
}
