//! Servers are killed and started again under programs of many kinds: no program sees an error, and
//! nothing that a call has confirmed is lost.
//!
//! `NACRE_RECOVERY_KILLS=N` sets the number of kills.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::crash_matrix::{SLACK, holds_within};
use crate::file_system::{FileSystem, Shape, pid_of_mount, text};
use crate::fixture::nacre_ok;
use crate::unresponsive_clients::StoppedProcess;

/// The programs: each works in a directory of its own until a line arrives at its input. Then it
/// prints the number of its steps, and what to expect in its directory: for each file its name and
/// the checksum of its contents.
pub(crate) const PROGRAMS: [(&str, &str); 8] = [
    (
        "creates",
        "def step(i):
             with open(f'f{i}', 'w') as f: f.write(str(i) * 100)
             if i % 3 == 0: os.rename(f'f{i}', f'g{i}')
             if i % 5 == 0: os.mkdir(f'd{i}'); os.link(f'f{i}' if i % 3 else f'g{i}', f'd{i}/l')
             if i % 7 == 0 and i: os.unlink(f'f{i - 1}' if (i - 1) % 3 else f'g{i - 1}')",
    ),
    (
        "appends",
        "log = os.open('log', os.O_CREAT | os.O_APPEND | os.O_WRONLY)
         def step(i): assert os.write(log, b'%099d\\n' % i) == 100
         def check():
             lines = open('log').read().split()
             assert [int(l) for l in lines] == list(range(steps)), (len(lines), steps)",
    ),
    (
        "saves",
        "def step(i):
             with open('new', 'w') as f:
                 f.write(str(i) * 500); f.flush(); os.fsync(f.fileno())
             os.rename('new', 'saved')
         def check(): assert open('saved').read() == str(steps - 1) * 500",
    ),
    (
        "locks",
        "held, part = open('held', 'w'), open('part', 'w')
         fcntl.flock(held, fcntl.LOCK_EX)
         fcntl.lockf(part, fcntl.LOCK_EX, 10, 5)
         other = open('other', 'w')
         def step(i):
             fcntl.flock(other, fcntl.LOCK_EX); fcntl.flock(other, fcntl.LOCK_UN)
             held.write('x'); held.flush()",
    ),
    (
        "mapping",
        "fd = os.open('map', os.O_CREAT | os.O_RDWR)
         os.ftruncate(fd, 1 << 16)
         m = mmap.mmap(fd, 1 << 16)
         def step(i):
             at = i * 64 % (1 << 16)
             m[at:at + 8] = i.to_bytes(8, 'little')
             assert m[at:at + 8] == i.to_bytes(8, 'little')
             time.sleep(0.001)
         def check():
             for i in range(max(0, steps - 1024), steps):
                 at = i * 64 % (1 << 16)
                 assert os.pread(fd, 8, at) == i.to_bytes(8, 'little'), i
             m.flush()",
    ),
    (
        "direct",
        "fd = os.open('direct', os.O_CREAT | os.O_RDWR | os.O_DIRECT)
         m = mmap.mmap(-1, 65536)
         def step(i):
             m[:] = bytes([i % 251]) * 65536
             assert os.pwrite(fd, m, 65536 * (i % 64)) == 65536
         def check():
             for i in range(max(0, steps - 64), steps):
                 assert os.pread(fd, 9, 65536 * (i % 64)) == bytes([i % 251]) * 9, i",
    ),
    (
        "sqlite",
        "db = sqlite3.connect('db', timeout=60, isolation_level=None)
         db.execute('pragma journal_mode=wal')
         db.execute('create table t(n integer primary key)')
         def step(i): db.execute('insert into t values(?)', (i,))
         def check():
             db.close()
             again = sqlite3.connect('db')
             assert again.execute('pragma integrity_check').fetchone() == ('ok',)
             assert again.execute('select count(*), max(n) from t').fetchone() == (steps, steps - 1)
             again.close()",
    ),
    (
        "removed",
        "gone = open('gone', 'w+b')
         os.unlink('gone')
         def step(i):
             assert os.pwrite(gone.fileno(), b'%07d\\n' % i, 8 * i) == 8
             open('t', 'w').write(str(i)); os.chmod('t', 0o600 + i % 8); os.utime('t', (i, i))
             st = os.stat('t')
             assert (st.st_mode & 0o777, st.st_mtime, st.st_size) == (0o600 + i % 8, i, len(str(i))), (i, st)
         def check():
             assert os.fstat(gone.fileno()).st_nlink == 0
             data = os.pread(gone.fileno(), 8 * steps, 0)
             assert data == b''.join(b'%07d\\n' % i for i in range(steps))",
    ),
];

const HEAD: &str = "import fcntl, hashlib, mmap, os, select, sqlite3, sys, time
steps = 0
def check(): pass
";
const TAIL: &str = "
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    step(steps)
    steps += 1
check()
print(steps, flush=True)
sums = []
for d, dirs, files in os.walk('.'):
    for f in files:
        path = os.path.join(d, f)
        sums.append(path + ' ' + hashlib.sha256(open(path, 'rb').read()).hexdigest())
print('\\n'.join(sorted(sums)), flush=True)
";

/// A program at work.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(mount: &Path, name: &'static str, body: &str) -> Program {
        let dir = mount.join(name);
        fs::create_dir(&dir).unwrap();
        // The bodies are indented to fit this file.
        let body = body.replace("\n         ", "\n");
        let mut child = Command::new("python3")
            .args(["-c", &format!("{HEAD}{body}{TAIL}")])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { name, child, stdout };
        assert_eq!(program.next_line(), "ready", "{name}");
        program
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends the program; returns the number of its steps and the checksums of its files.
    pub(crate) fn finish(mut self) -> (u64, String) {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "{} failed: see its message above",
            self.name
        );
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let steps = self.next_line().parse();
        let mut sums = String::new();
        self.stdout.read_to_string(&mut sums).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}", self.name);
        (steps.unwrap(), sums)
    }
}

/// The checksums of a directory's files, through another mount.
pub(crate) fn sums_in(dir: &Path) -> String {
    let walk = TAIL.split_once("sums = []").unwrap().1;
    let out = Command::new("python3")
        .args(["-c", &format!("{HEAD}sums = []{walk}")])
        .current_dir(dir)
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn programs_only_wait_while_servers_are_killed() {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let second = fs.add_mount("second", 5);
    let mount = fs.mount_point();
    let programs: Vec<_> = PROGRAMS
        .iter()
        .map(|(name, body)| Program::start(&mount, name, body))
        .collect();
    let kills = std::env::var("NACRE_RECOVERY_KILLS")
        .ok()
        .and_then(|n| n.parse().ok());
    let victims: [&[&str]; 4] = [&["mdt"], &["ost"], &["mdt", "ost"], &["mgs", "mdt", "ost"]];
    let absences = [200, 1000, 20, 3000].map(Duration::from_millis);
    for kill in 0..kills.unwrap_or(4) {
        std::thread::sleep(Duration::from_millis(700 + kill as u64 * 97 % 500));
        let servers = victims[kill % victims.len()];
        servers.iter().for_each(|server| fs.site.kill(server));
        std::thread::sleep(absences[(kill / victims.len() + kill) % absences.len()]);
        servers.iter().for_each(|server| fs.start_server(server));
        let begun = Instant::now();
        // Another mount also only waits.
        fs::write(second.join(format!("probe{kill}")), "probe").unwrap();
        assert!(begun.elapsed() < SLACK);
        // Nobody else gets the locks of a program that lives.
        let lock = "import fcntl, sys\nfcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)";
        let held = second.join("locks/held");
        let out = Command::new("python3")
            .args(["-c", lock, text(&held)])
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(err.contains("BlockingIOError"), "{err}");
    }
    for program in programs {
        let name = program.name;
        let (steps, sums) = program.finish();
        assert!(steps > 0, "{name} did nothing");
        assert_eq!(sums_in(&second.join(name)), sums, "{name}, after {steps} steps");
    }
    nacre_ok(&["umount", text(&second)]);
    fs.stop();
    fs.check_consistency();
}

#[test]
fn a_missing_client_is_evicted_after_some_seconds_and_can_be_evicted_at_once() {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let second = fs.add_mount("second", 5);
    let mdt = fs.site.path_str("mdt");
    for aborts in [false, true] {
        fs::write(second.join("file"), "data").unwrap();
        let stopped = StoppedProcess::new(pid_of_mount(&second));
        fs.site.kill("mdt");
        fs.start_server("mdt");
        let begun = Instant::now();
        let status = || nacre_ok(&["lctl", "--dir", &mdt, "get_param", "-n", "mdt.*.recovery_status"]);
        if aborts {
            let reconnected = || status().contains("connected_clients: 1/2");
            assert!(holds_within(SLACK, reconnected), "{}", status());
            nacre_ok(&["lctl", "--dir", &mdt, "--device", "lus-MDT0000", "abort_recovery"]);
        } else {
            assert!(status().contains("missing_clients: [ "), "{}", status());
        }
        fs::write(fs.mount_point().join("other"), "data").unwrap();
        if !aborts {
            assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
        }
        let text = status();
        assert!(
            text.contains("status: COMPLETE") && text.contains("completed_clients: 1/2"),
            "{text}"
        );
        drop(stopped);
        let works = || fs::read(second.join("file")).is_ok_and(|data| data == b"data");
        assert!(holds_within(SLACK, works));
    }
    nacre_ok(&["umount", text(&second)]);
    fs.stop();
}
