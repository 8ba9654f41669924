//! A process that works on a durable store is killed; what the next one finds is a consistent tree with everything
//! that a sync had promised.

use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use osd::{StoreKind, open_index};

use super::{Fixture, ROOT, check};
use crate::store::Store;

const DIR: &str = "NACRE_MDT_CRASH_DIR";
/// Operations between two syncs.
const STEP: u32 = 40;

async fn store(dir: &Path) -> Store {
    Store::new(open_index(&StoreKind::Local(dir.to_owned())).await.unwrap())
}

/// Not a test of its own: what the child process of the next test does, until it is killed. Files are made in `a`,
/// linked, renamed over each other into `b`, and removed again, each under its number.
#[tokio::test]
async fn child() {
    let Some(dir) = env::var_os(DIR) else { return };
    let store = store(Path::new(&dir)).await;
    let mut f = Fixture::over(store);
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
        if n % STEP == 0 {
            f.store.index().sync().await.unwrap();
            println!("synced {n}");
        }
    }
}

fn run_and_kill(dir: &Path, after: Duration) -> u32 {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "namespace::tests::crash::child", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (start, mut last, mut killed) = (Instant::now(), None, false);
    // What it printed before the kill still comes out of the pipe.
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
async fn a_killed_process_leaves_a_consistent_tree_with_all_that_was_synced() {
    for ms in [20, 150, 400] {
        let dir = tempfile::tempdir().unwrap();
        let synced = run_and_kill(dir.path(), Duration::from_millis(ms));
        let f = Fixture::over(store(dir.path()).await);
        check::consistent(&f.store);
        let (a, b) = (f.lookup(ROOT, "a").unwrap(), f.lookup(ROOT, "b").unwrap());
        let newest = format!("f{synced}");
        let place = if synced.is_multiple_of(3) { b } else { a };
        assert!(f.lookup(place, &newest).is_some(), "{newest} was synced");
    }
}
