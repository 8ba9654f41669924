//! Kills a process that changes a durable store: the next start must find a consistent tree with
//! all synced changes.

use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use osd::{LocalStores, Stores};

use super::{Fixture, ROOT, check, concurrent};
use crate::store::Store;

/// The environment variable that names the store's directory to a child process.
const DIR_VARIABLE: &str = "NACRE_MDT_CRASH_DIR";
/// Number of rounds from one sync to the next.
const ROUNDS_PER_SYNC: u32 = 40;
/// Number of threads that change one directory.
const THREADS: u32 = 3;

async fn store(dir: &Path) -> Store {
    Store::new(LocalStores::in_dir(dir).open_index().await.unwrap())
}

/// The child process of `kill_leaves_a_consistent_tree_with_all_synced_changes`, not a test itself.
/// Until its parent kills it, it creates files in `a`, renames some of them into `b`, also over
/// each other, and removes some.
#[tokio::test]
async fn child_process_changes_two_directories() {
    let Some(dir) = env::var_os(DIR_VARIABLE) else {
        return;
    };
    let store = store(Path::new(&dir)).await;
    let mut f = Fixture::with_store(store);
    let (a, b) = (f.dir(ROOT, "a"), f.dir(ROOT, "b"));
    for n in 0.. {
        f.file(a, &format!("f{n}"));
        if n % 3 == 0 {
            f.rename((a, &format!("f{n}")), (b, &format!("f{n}"))).unwrap();
        }
        if n % 5 == 4 {
            f.rename((a, &format!("f{}", n - 2)), (b, &format!("f{}", n - 4)))
                .ok();
            f.unlink(a, &format!("f{}", n - 3)).ok();
        }
        if n % ROUNDS_PER_SYNC == 0 {
            f.store.index().sync().await.unwrap();
            println!("synced {n}");
        }
    }
}

/// The child process of `kill_during_concurrent_changes_leaves_a_consistent_directory`, not a test
/// itself: several threads change one directory.
#[tokio::test]
async fn child_process_changes_one_directory_with_threads() {
    let Some(dir) = env::var_os(DIR_VARIABLE) else {
        return;
    };
    let mut f = Fixture::with_store(store(Path::new(&dir)).await);
    let dir = f.dir(ROOT, "d");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let mut f = f.another_user((thread + 1) << 16);
            let runtime = tokio::runtime::Handle::current();
            scope.spawn(move || {
                let _guard = runtime.enter();
                for n in 0.. {
                    concurrent::run_round(&mut f, dir, thread, n);
                    if thread == 0 && n % ROUNDS_PER_SYNC == 0 {
                        runtime.block_on(f.store.index().sync()).unwrap();
                        println!("synced {n}");
                    }
                }
            });
        }
    });
}

/// Runs a child process on the store in `dir`, and kills it after its first sync, but not before
/// `after`. Returns the last round that it synced.
fn run_and_kill(child: &str, dir: &Path, after: Duration) -> u32 {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", child, "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (start, mut last, mut killed) = (Instant::now(), None, false);
    // Lines printed before the kill are still in the pipe.
    for line in out.lines().map_while(Result::ok) {
        last = line.strip_prefix("synced ").map(|n| n.parse().unwrap()).or(last);
        if !killed && last.is_some() && start.elapsed() > after {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    last.unwrap()
}

#[tokio::test]
async fn kill_leaves_a_consistent_tree_with_all_synced_changes() {
    for ms in [20, 150, 400] {
        let dir = tempfile::tempdir().unwrap();
        let synced = run_and_kill(
            "namespace::tests::crash::child_process_changes_two_directories",
            dir.path(),
            Duration::from_millis(ms),
        );
        let f = Fixture::with_store(store(dir.path()).await);
        check::assert_consistent(&f.store);
        let (a, b) = (f.lookup(ROOT, "a").unwrap(), f.lookup(ROOT, "b").unwrap());
        let newest = format!("f{synced}");
        let parent = if synced.is_multiple_of(3) { b } else { a };
        assert!(f.lookup(parent, &newest).is_some(), "{newest} was synced");
    }
}

#[tokio::test]
async fn kill_during_concurrent_changes_leaves_a_consistent_directory() {
    for ms in [20, 200] {
        let dir = tempfile::tempdir().unwrap();
        let after = Duration::from_millis(ms);
        let synced = run_and_kill(
            "namespace::tests::crash::child_process_changes_one_directory_with_threads",
            dir.path(),
            after,
        );
        let f = Fixture::with_store(store(dir.path()).await);
        check::assert_consistent(&f.store);
        let d = f.lookup(ROOT, "d").unwrap();
        for n in 0..=synced {
            assert!(f.lookup(d, &format!("moved.0.{n}")).is_some());
            assert_eq!(f.lookup(d, &format!("file.0.{n}")), None);
        }
    }
}
