//! Kills client A, the MDT, the OST, or MDT and OST together while A runs a workload: the other
//! processes continue within the documented time, data is present after a successful `fsync`, and
//! a check of the stopped file system finds nothing.
//!
//! A workload is a shell command that works in an empty directory of client A until the test ends
//! it or it fails. For each synced file it prints `NAME BYTES SHA256`: the checksum of the first
//! BYTES bytes. Client B observes. The seed determines the time of the kill. `NACRE_CRASH_ROUNDS=N`
//! runs each cell of the matrix N times with different seeds; `NACRE_CRASH_SEED=S` sets the first
//! seed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::file_system::{FileSystem, Shape, pid_of_mount, text};
use crate::fixture::{Site, kill, nacre_ok, run, sh};

/// Time that a server gives a client to cancel a lock in these tests: `ldlm_enqueue_min`.
pub(crate) const ENQUEUE_MIN: Duration = Duration::from_secs(4);
/// Time that a busy machine may add to any operation.
pub(crate) const SLACK: Duration = Duration::from_secs(120);
/// A part of a source tree to copy repeatedly.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/src");

/// Copies, renames, links and removes trees; keeps a removed file open.
const TREES: &str = r#"
    exec 7> gone; echo data >&7; rm gone; echo more >&7
    for n in $(seq 1000); do
        cp -r $TREE new; mv new tree$n
        for f in $(cd tree$n; ls -p | grep -v / | head -30); do mv tree$n/$f tree$n/$f.x; ln tree$n/$f.x tree$n/$f.y; rm tree$n/$f.x; done
        mkdir -p deep/$n/a/b; mv tree$n deep/$n/a/b
        if [ $n -gt 2 ]; then rm -r deep/$((n - 2)); fi
    done"#;

/// Three processes append to one log each, create new files, and sync everything.
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

/// Random reads, writes, truncations and holes, through system calls and mappings.
const MAPPED: &str = r#"
    printf 'flen = 1048576\n[opsize]\nmax = 65536\n[weights]\nread = 5\nwrite = 10\nmapread = 5\nmapwrite = 10\n' > $ASIDE/fsx.toml
    printf 'truncate = 3\nfsync = 1\npunch_hole = 2\nclose_open = 1\n' >> $ASIDE/fsx.toml
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    fsx -S 1 -N 100000000 -f $ASIDE/fsx.toml -P $ASIDE f > $ASIDE/fsx.log"#;

/// Creates and removes many files with data.
const CHURN: &str = r#"
    for p in 1 2 3; do (
        for n in $(seq 10000); do
            for i in $(seq 40); do echo $i > of$p-$n-$i; done
            if [ $n -gt 1 ]; then rm of$p-$((n - 1))-*; fi
        done ) & done; wait"#;

/// The killed processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client,
    Mdt,
    Ost,
    /// The MDT and the OST together.
    Both,
}

/// A cell of the matrix: a file system with a running workload.
struct Cell {
    fs: FileSystem,
    /// Mount point of client A, which runs the workload.
    a: PathBuf,
    /// Mount point of client B.
    b: PathBuf,
    /// Directory outside the file system, for the workload's output and its own files.
    aside: String,
    work: Child,
}

/// The range of seeds to run.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    let first = number("NACRE_CRASH_SEED").unwrap_or(1);
    first..first + number("NACRE_CRASH_ROUNDS").unwrap_or(1)
}

/// A file system with two clients and a short lock timeout.
pub(crate) fn two_clients() -> (FileSystem, PathBuf, PathBuf) {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let b = fs.add_mount("b", 5);
    set_short_lock_timeout(&fs.site);
    let a = fs.mount_point();
    (fs, a, b)
}

/// Sets a short lock timeout on the servers of four processes.
pub(crate) fn set_short_lock_timeout(site: &Site) {
    let seconds = format!("ldlm.namespaces.*.ldlm_enqueue_min={}", ENQUEUE_MIN.as_secs());
    nacre_ok(&[
        "lctl",
        "--dir",
        &site.path_str("mgs"),
        "set_param",
        "-P",
        &seconds,
    ]);
    for server in ["mdt", "ost"] {
        // The servers receive the parameter through their configuration logs, with a delay.
        let dir = site.path_str(server);
        let get = [
            "lctl",
            "--dir",
            &dir,
            "get_param",
            "-n",
            "ldlm.namespaces.*.ldlm_enqueue_min",
        ];
        let set = holds_within(SLACK, || {
            nacre_ok(&get).trim() == ENQUEUE_MIN.as_secs().to_string()
        });
        assert!(set, "{server} did not receive the parameter");
    }
}

/// Waits until a condition holds; returns whether it did within the limit.
pub(crate) fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start_time = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start_time.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Cell {
    fn start(line: &str) -> Cell {
        let (fs, a, b) = two_clients();
        let aside = fs.site.path_str("aside");
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
        let has_begun = holds_within(SLACK, || fs::read_dir(b.join("work")).unwrap().count() > 0);
        let exit = work.try_wait().unwrap();
        let errors = fs::read_to_string(Path::new(&aside).join("errors")).unwrap();
        assert!(
            has_begun && exit.is_none(),
            "the workload does not begin: {exit:?} {errors}"
        );
        Cell {
            fs,
            a,
            b,
            aside,
            work,
        }
    }

    /// Kills the victim; restarts servers.
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

    /// Checks that the workload goes on without an error.
    fn check_work(&mut self) {
        let exit = self.work.try_wait().unwrap();
        let errors = fs::read_to_string(Path::new(&self.aside).join("errors")).unwrap();
        assert!(exit.is_none() && errors.is_empty(), "{exit:?} {errors}");
    }

    /// Ends the workload if it is still running.
    fn end_work(&mut self) {
        sh(&format!("kill -9 -- -{} || true", self.work.id()));
        self.work.wait().unwrap();
    }

    /// Runs a shell command in the directory of the workload, on B.
    fn run_on_b(&self, line: &str) -> Result<(), String> {
        let line = format!("cd {}/work; {line}", text(&self.b));
        let result = run(Command::new("bash").args(["-euo", "pipefail", "-c", &line]));
        if result.ok {
            Ok(())
        } else {
            Err(format!("{line}: {}", result.err))
        }
    }

    /// Checks that the data of each successful `fsync` is present.
    fn check_synced(&self) {
        let synced = fs::read_to_string(Path::new(&self.aside).join("synced")).unwrap();
        // The last line may be incomplete.
        let lines = synced.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        for line in lines {
            let [name, bytes, sum, _] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("unexpected output of the workload: {line}");
            };
            let check = format!("test \"$(head -c {bytes} {name} | sha256sum)\" = '{sum}  -'");
            let result = self.run_on_b(&check);
            assert!(result.is_ok(), "synced data is missing: {line}{result:?}");
        }
    }
}

/// Runs one cell of the matrix.
fn run_cell(line: &str, victim: Victim, seed: u64) {
    eprintln!("{victim:?} is killed, seed {seed}");
    let mut cell = Cell::start(line);
    // The seed selects the time of the kill, so each seed interrupts other operations.
    std::thread::sleep(Duration::from_millis(
        300 + seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1700,
    ));
    cell.kill_and_restart(victim);
    let kill_time = Instant::now();
    let operations = "ls -lR > /dev/null; mkdir of-b; echo x > of-b/x; test $(cat of-b/x) = x; rm -r of-b";
    match victim {
        // Other clients see no error; they wait until the servers evict the dead client.
        Victim::Client => {
            cell.run_on_b(operations).unwrap();
            let limit = ENQUEUE_MIN * 3 + SLACK;
            assert!(
                kill_time.elapsed() < limit,
                "B waited for {:?}",
                kill_time.elapsed()
            );
            cell.end_work();
            nacre_ok(&["umount", text(&cell.a)]);
        }
        // The clients only wait.
        Victim::Mdt | Victim::Ost | Victim::Both => {
            fs::write(cell.a.join("work/of-a"), "a").unwrap();
            cell.check_work();
            cell.end_work();
            cell.run_on_b(operations).unwrap();
            assert_eq!(fs::read_to_string(cell.b.join("work/of-a")).unwrap(), "a");
        }
    }
    cell.check_synced();
    // All remaining files are readable, and files of the workload can be removed.
    cell.run_on_b("find . -type f -exec cat {} + > /dev/null; rm -rf deep log1 new1-*")
        .unwrap();
    if victim == Victim::Client {
        nacre_ok(&["umount", text(&cell.b)]);
        cell.fs.stop_servers();
    } else {
        nacre_ok(&["umount", text(&cell.b)]);
        cell.fs.stop();
    }
    cell.fs.check_consistency();
}

fn run_seeds(line: &str, victim: Victim) {
    seeds().for_each(|seed| run_cell(line, victim, seed));
}

#[test]
fn synced_data_survives_kill_of_client_while_copying_trees() {
    run_seeds(TREES, Victim::Client);
}

#[test]
fn synced_data_survives_kill_of_client_while_appending() {
    run_seeds(APPENDS, Victim::Client);
}

#[test]
fn synced_data_survives_kill_of_client_while_using_mappings() {
    run_seeds(MAPPED, Victim::Client);
}

#[test]
fn synced_data_survives_kill_of_mdt_while_trees_are_copied() {
    run_seeds(TREES, Victim::Mdt);
}

#[test]
fn synced_data_survives_kill_of_mdt_while_clients_append() {
    run_seeds(APPENDS, Victim::Mdt);
}

#[test]
fn synced_data_survives_kill_of_mdt_while_a_file_is_mapped() {
    run_seeds(MAPPED, Victim::Mdt);
}

#[test]
fn synced_data_survives_kill_of_ost_while_trees_are_copied() {
    run_seeds(TREES, Victim::Ost);
}

#[test]
fn synced_data_survives_kill_of_ost_while_clients_append() {
    run_seeds(APPENDS, Victim::Ost);
}

#[test]
fn synced_data_survives_kill_of_ost_while_a_file_is_mapped() {
    run_seeds(MAPPED, Victim::Ost);
}

#[test]
fn synced_data_survives_kill_of_mdt_and_ost_while_files_are_created_and_removed() {
    run_seeds(CHURN, Victim::Both);
}
