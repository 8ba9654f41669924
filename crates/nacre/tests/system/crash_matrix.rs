//! One process of four, or the MDT and the OST at once, is killed in the middle of work: whoever is left goes on within the documented time, what `fsync`
//! returned for is there, and the check of the stopped file system finds nothing.
//!
//! A workload is a command line that works in an empty directory of client A until it is ended or fails. What it prints,
//! `NAME BYTES SHA256`, it says was synced: so many bytes of the file have that sum. Client B looks on. The moment of the
//! kill comes from a seed. `NACRE_CRASH_ROUNDS=N` in the environment has every cell of the matrix done N times, each with
//! another seed; `NACRE_CRASH_SEED=S` begins with that one.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::file_system::{FileSystem, Shape, pid_of_mount, text};
use crate::fixture::{Site, kill, nacre_ok, run, sh};

/// What a client has to give a lock back, in these tests: `ldlm_enqueue_min`.
pub(crate) const ENQUEUE_MIN: Duration = Duration::from_secs(4);
/// What machines that do much else may take for anything.
pub(crate) const SLACK: Duration = Duration::from_secs(120);
/// A part of a source tree, which is copied again and again.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/src");

/// Trees are copied, renamed, linked, removed; a file that was removed stays open.
const TREES: &str = r#"
    exec 7> gone; echo data >&7; rm gone; echo more >&7
    for n in $(seq 1000); do
        cp -r $TREE new; mv new tree$n
        for f in $(cd tree$n; ls -p | grep -v / | head -30); do mv tree$n/$f tree$n/$f.x; ln tree$n/$f.x tree$n/$f.y; rm tree$n/$f.x; done
        mkdir -p deep/$n/a/b; mv tree$n deep/$n/a/b
        if [ $n -gt 2 ]; then rm -r deep/$((n - 2)); fi
    done"#;

/// Three processes append to a log each and make new files, and sync all that.
const APPENDS: &str = r#"
    for p in 1 2 3; do (
        for i in $(seq 10000); do
            head -c $((RANDOM % 9000 + 1)) /dev/urandom > $ASIDE/record$p
            dd if=$ASIDE/record$p of=log$p oflag=append conv=notrunc,fsync status=none
            cat $ASIDE/record$p >> $ASIDE/log$p
            echo log$p $(stat -c %s $ASIDE/log$p) $(sha256sum < $ASIDE/log$p)
            dd if=$ASIDE/record$p of=new$p-$i conv=fsync status=none
            echo new$p-$i $(stat -c %s $ASIDE/record$p) $(sha256sum < $ASIDE/record$p)
        done ) & done; wait"#;

/// Random reads, writes, truncations, holes, through calls and mappings.
const MAPPED: &str = r#"
    printf 'flen = 1048576\n[opsize]\nmax = 65536\n[weights]\nread = 5\nwrite = 10\nmapread = 5\nmapwrite = 10\n' > $ASIDE/fsx.toml
    printf 'truncate = 3\nfsync = 1\npunch_hole = 2\nclose_open = 1\n' >> $ASIDE/fsx.toml
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    fsx -S 1 -N 100000000 -f $ASIDE/fsx.toml -P $ASIDE f > $ASIDE/fsx.log"#;

/// Files with data come and go, many at once.
const CHURN: &str = r#"
    for p in 1 2 3; do (
        for n in $(seq 10000); do
            for i in $(seq 40); do echo $i > of$p-$n-$i; done
            if [ $n -gt 1 ]; then rm of$p-$((n - 1))-*; fi
        done ) & done; wait"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client,
    Mdt,
    Ost,
    /// The MDT and the OST at once.
    Both,
}

/// A cell of the matrix: its file system, its workload under way.
struct Cell {
    fs: FileSystem,
    a: PathBuf,
    b: PathBuf,
    aside: String,
    work: Child,
}

/// How many times, and from which seed on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let first = number("NACRE_CRASH_SEED").unwrap_or(1);
    first..first + number("NACRE_CRASH_ROUNDS").unwrap_or(1)
}

/// A file system with two clients, and a time for locks that tests can wait for.
pub(crate) fn two_clients() -> (FileSystem, PathBuf, PathBuf) {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let b = fs.attach("b", 5);
    shorten_lock_time(&fs.site);
    let a = fs.mount();
    (fs, a, b)
}

/// Has the servers of four processes wait for locks only as long as tests can.
pub(crate) fn shorten_lock_time(site: &Site) {
    let seconds = format!("ldlm.namespaces.*.ldlm_enqueue_min={}", ENQUEUE_MIN.as_secs());
    nacre_ok(&["lctl", "--dir", &site.at("mgs"), "set_param", "-P", &seconds]);
    for server in ["mdt", "ost"] {
        // It comes to the servers by their logs, in a moment.
        let dir = site.at(server);
        let get = [
            "lctl",
            "--dir",
            &dir,
            "get_param",
            "-n",
            "ldlm.namespaces.*.ldlm_enqueue_min",
        ];
        let set = within(SLACK, || {
            nacre_ok(&get).trim() == ENQUEUE_MIN.as_secs().to_string()
        });
        assert!(set, "{server} is not told");
    }
}

/// Tries until it is so, but not for longer than this.
pub(crate) fn within(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Cell {
    fn begin(line: &str) -> Cell {
        let (fs, a, b) = two_clients();
        let aside = fs.site.at("aside");
        fs::create_dir(&aside).unwrap();
        fs::create_dir(a.join("work")).unwrap();
        let out = |name: &str| File::create(Path::new(&aside).join(name)).unwrap();
        let mut work = Command::new("bash")
            .args(["-euc", line])
            .current_dir(a.join("work"))
            .envs([("TREE", TREE), ("ASIDE", &aside)])
            .stdin(Stdio::null())
            .stdout(out("synced"))
            .stderr(out("errors"))
            .process_group(0)
            .spawn()
            .unwrap();
        let begun = within(SLACK, || fs::read_dir(b.join("work")).unwrap().count() > 0);
        let ended = work.try_wait().unwrap();
        let errors = fs::read_to_string(Path::new(&aside).join("errors")).unwrap();
        assert!(
            begun && ended.is_none(),
            "the work does not begin: {ended:?} {errors}"
        );
        Cell {
            fs,
            a,
            b,
            aside,
            work,
        }
    }

    /// Kills the victim, and starts it again.
    fn kill_and_restart(&mut self, victim: Victim) {
        let servers: &[&str] = match victim {
            Victim::Client => {
                kill(pid_of_mount(&self.a) as u32);
                return;
            }
            Victim::Mdt => &["mdt"],
            Victim::Ost => &["ost"],
            Victim::Both => &["mdt", "ost"],
        };
        servers.iter().for_each(|server| self.fs.site.kill(server));
        servers.iter().for_each(|server| self.fs.start_server(server));
    }

    /// Ends the workload, if it has not failed by itself.
    fn end_work(&mut self) {
        sh(&format!("kill -9 -- -{} || true", self.work.id()));
        self.work.wait().unwrap();
    }

    /// A command line of the shell in the directory of the workload, as B sees it.
    fn b_does(&self, line: &str) -> Result<(), String> {
        let line = format!("cd {}/work; {line}", text(&self.b));
        let did = run(Command::new("bash").args(["-euo", "pipefail", "-c", &line]));
        if did.ok {
            Ok(())
        } else {
            Err(format!("{line}: {}", did.err))
        }
    }

    /// Everything whose `fsync` had returned is there.
    fn synced_is_there(&self) {
        let synced = fs::read_to_string(Path::new(&self.aside).join("synced")).unwrap();
        // The last line may have been cut off.
        let lines = synced.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        for line in lines {
            let [name, bytes, sum, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("what the workload prints: {line}");
            };
            let check = format!("test \"$(head -c {bytes} {name} | sha256sum)\" = '{sum}  -'");
            let there = self.b_does(&check);
            assert!(there.is_ok(), "synced and not there: {line}{there:?}");
        }
    }
}

/// One cell of the matrix.
fn live_through(line: &str, victim: Victim, seed: u64) {
    eprintln!("{victim:?} is killed, seed {seed}");
    let mut cell = Cell::begin(line);
    // The moment is part of the test: whatever is under way then.
    std::thread::sleep(Duration::from_millis(
        300 + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1700,
    ));
    cell.kill_and_restart(victim);
    let killed = Instant::now();
    let uses = "ls -lR > /dev/null; mkdir of-b; echo x > of-b/x; test $(cat of-b/x) = x; rm -r of-b";
    match victim {
        // Nothing fails for who is left; it waits for the locks of who is gone.
        Victim::Client => {
            cell.b_does(uses).unwrap();
            let limit = ENQUEUE_MIN * 3 + SLACK;
            assert!(killed.elapsed() < limit, "B waited for {:?}", killed.elapsed());
            cell.end_work();
            nacre_ok(&["umount", text(&cell.a)]);
        }
        // What is under way may fail once.
        Victim::Mdt | Victim::Ost | Victim::Both => {
            cell.end_work();
            let mut last = Ok(());
            let goes_on = within(SLACK, || {
                last = cell.b_does(&format!("rm -rf of-b; {uses}"));
                last.is_ok()
            });
            assert!(goes_on, "B does not go on: {last:?}");
            let a = cell.a.join("work/of-a");
            assert!(within(SLACK, || fs::write(&a, "a").is_ok()), "A does not go on");
            assert_eq!(fs::read_to_string(cell.b.join("work/of-a")).unwrap(), "a");
        }
    }
    cell.synced_is_there();
    // All that is there can be read; and a part of it removed.
    cell.b_does("find . -type f -exec cat {} + > /dev/null; rm -rf deep log1 new1-*")
        .unwrap();
    if victim == Victim::Client {
        nacre_ok(&["umount", text(&cell.b)]);
        cell.fs.stop_servers();
    } else {
        nacre_ok(&["umount", text(&cell.b)]);
        cell.fs.stop();
    }
    cell.fs.is_consistent();
}

fn row(line: &str, victim: Victim) {
    seeds().for_each(|seed| live_through(line, victim, seed));
}

#[test]
fn a_client_is_killed_while_it_copies_trees() {
    row(TREES, Victim::Client);
}

#[test]
fn a_client_is_killed_while_it_appends() {
    row(APPENDS, Victim::Client);
}

#[test]
fn a_client_is_killed_while_it_maps() {
    row(MAPPED, Victim::Client);
}

#[test]
fn the_mdt_is_killed_while_trees_are_copied() {
    row(TREES, Victim::Mdt);
}

#[test]
fn the_mdt_is_killed_while_clients_append() {
    row(APPENDS, Victim::Mdt);
}

#[test]
fn the_mdt_is_killed_while_a_file_is_mapped() {
    row(MAPPED, Victim::Mdt);
}

#[test]
fn an_ost_is_killed_while_trees_are_copied() {
    row(TREES, Victim::Ost);
}

#[test]
fn an_ost_is_killed_while_clients_append() {
    row(APPENDS, Victim::Ost);
}

#[test]
fn an_ost_is_killed_while_a_file_is_mapped() {
    row(MAPPED, Victim::Ost);
}

#[test]
fn the_mdt_and_the_ost_are_killed_while_files_come_and_go() {
    row(CHURN, Victim::Both);
}
