//! Targets that do not answer or that restart: only operations that need the target wait, signals
//! interrupt the wait, the log names the target, and descriptors with lost data or locks fail.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::crash_matrix::{SLACK, holds_within};
use crate::file_system::{FileSystem, Shape, pid_of_mount, record_of_mount, text};
use crate::fixture::{nacre, nacre_ok, sh};
use crate::unresponsive_clients::StoppedProcess;

/// Time limit for operations that do not need the unresponsive target, on a busy machine.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(120);
/// Host number of the second OST.
const SECOND_OST: u8 = 6;

/// A file system with two OSTs in separate processes.
struct TwoOstFs {
    fs: FileSystem,
    mount: PathBuf,
}

impl TwoOstFs {
    fn new() -> TwoOstFs {
        let mut system = FileSystem::new(Shape::FourProcesses);
        system.start_second_ost("ost2", SECOND_OST);
        let mount = system.add_mount("pair", 7);
        // Wait until the mount and the MDT know the second OST.
        let probe = mount.join("probe");
        let both_know = || {
            nacre_ok(&["lfs", "df", text(&mount)]).contains("OST0001")
                && nacre(&["lfs", "setstripe", "-c", "1", "-i", "1", text(&probe)]).ok
        };
        assert!(holds_within(SLACK, both_know));
        fs::remove_file(probe).unwrap();
        TwoOstFs { fs: system, mount }
    }

    /// Creates a file on one of the OSTs, with its data on disk.
    fn create_file(&self, name: &str, ost: u32) -> PathBuf {
        let path = self.mount.join(name);
        nacre_ok(&["lfs", "setstripe", "-c", "1", "-i", &ost.to_string(), text(&path)]);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(name.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
        path
    }

    /// Makes the second OST unresponsive.
    fn hang_second_ost(&self) -> StoppedProcess {
        StoppedProcess::new(self.fs.site.pid_in("ost2").into())
    }

    /// Makes the mount unresponsive.
    fn stop_mount(&self) -> StoppedProcess {
        StoppedProcess::new(pid_of_mount(&self.mount))
    }

    /// Waits until a restarted server has evicted the clients that did not reconnect.
    fn wait_until_recovered(&self, server: &str) {
        let dir = self.fs.site.path_str(server);
        let get = ["lctl", "--dir", &dir, "get_param", "-n", "*.*.recovery_status"];
        let is_over = || nacre_ok(&get).contains("status: COMPLETE");
        assert!(holds_within(SLACK, is_over), "{}", nacre_ok(&get));
    }

    /// Drops the caches of the mount and the kernel.
    fn drop_caches(&self) {
        let clear = ["set_param", "ldlm.namespaces.*.lru_size=clear"];
        nacre_ok(&[&["lctl", "--mount", text(&self.mount)], &clear[..]].concat());
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(record_of_mount(&self.mount)["log"].as_str().unwrap()).unwrap()
    }

    fn stop(self) {
        nacre_ok(&["umount", text(&self.mount)]);
        self.fs.site.down("ost2");
        self.fs.stop();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

/// A program; killed on drop.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a Python program with `path` as its argument.
    fn python(text: &str, path: &Path) -> Program {
        let mut child = Command::new("python3")
            .args([
                "-c",
                &format!("import fcntl, mmap, os, signal, sys, time\npath = sys.argv[1]\n{text}"),
            ])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Program { child, stdout }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn resume(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Whether the program waits for the answer to a FUSE request.
    fn is_blocked(&self) -> bool {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", self.child.id()));
        wchan.is_ok_and(|at| at == "request_wait_answer")
    }

    fn wait_until_blocked(&self) {
        assert!(
            holds_within(SLACK, || self.is_blocked()),
            "the program does not wait for the mount"
        );
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(&self.child), signal).unwrap();
    }

    /// Waits for the end of the program; `None` after [`COMMAND_TIME_MAX`].
    fn wait(&mut self) -> Option<ExitStatus> {
        let mut status = None;
        holds_within(COMMAND_TIME_MAX, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a shell command that must finish although a target is unresponsive.
fn sh_within_limit(line: &str) -> String {
    let start_time = Instant::now();
    let out = sh(line);
    assert!(
        start_time.elapsed() < COMMAND_TIME_MAX,
        "{line}: {:?}",
        start_time.elapsed()
    );
    out
}

/// Operations that wait for a target, one in each line, some on a path and some on an open file.
const BLOCKING_OPERATIONS: [&str; 7] = [
    "os.stat(path)",
    "os.open(path, os.O_RDONLY)",
    "os.truncate(path, 3)",
    "os.pread(fd, 9, 0)",
    "os.lseek(fd, 0, os.SEEK_END)",
    "os.fsync(fd)",
    "os.pwrite(fd, b'x' * 9, 0)",
];

#[test]
fn signals_interrupt_every_wait_for_an_unresponsive_ost() {
    let cluster = TwoOstFs::new();
    for (i, wait) in BLOCKING_OPERATIONS.into_iter().enumerate() {
        for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::KILL, 9)] {
            let path = cluster.create_file(&format!("f{i}-{number}"), 1);
            let mut program = Program::python(
                &format!(
                    "fd = os.open(path, os.O_RDWR) if 'fd' in '''{wait}''' else None\n\
                     signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                     print('ready', flush=True)\n\
                     sys.stdin.readline()\n\
                     {wait}\n\
                     print('done', flush=True)"
                ),
                &path,
            );
            assert_eq!(program.next_line(), "ready");
            cluster.drop_caches();
            let stopped_ost = cluster.hang_second_ost();
            program.resume();
            program.wait_until_blocked();
            program.signal(signal);
            let status = program.wait();
            assert_eq!(
                status.and_then(|s| s.signal()),
                Some(number),
                "{wait} at {signal:?}"
            );
            drop(stopped_ost);
        }
    }
    cluster.stop();
}

#[test]
fn signal_handler_runs_during_a_wait() {
    let cluster = TwoOstFs::new();
    let path = cluster.create_file("f", 1);
    cluster.drop_caches();
    let stopped_ost = cluster.hang_second_ost();
    let mut program = Program::python(
        // If the parent of this test ignores SIGINT, the program inherits that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n\
         try:\n    os.stat(path)\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)",
        &path,
    );
    program.wait_until_blocked();
    program.signal(Signal::INT);
    assert_eq!(program.next_line(), "interrupted");
    drop(stopped_ost);
    cluster.stop();
}

/// The client writes back the data that a program wrote before a kill, as after a close.
#[test]
fn data_is_written_after_a_kill_during_close() {
    let mut cluster = TwoOstFs::new();
    let path = cluster.create_file("f", 1);
    let mut program = Program::python(
        "fd = os.open(path, os.O_RDWR)\n\
         os.pread(fd, 9, 0)\n\
         os.pwrite(fd, b'first', 0)\n\
         os.fsync(fd)\n\
         print('ready', flush=True)\n\
         sys.stdin.readline()\n\
         os.pwrite(fd, b'last', 0)\n\
         print('written', flush=True)\n\
         os.close(fd)",
        &path,
    );
    assert_eq!(program.next_line(), "ready");
    let stopped_ost = cluster.hang_second_ost();
    program.resume();
    assert_eq!(program.next_line(), "written");
    program.wait_until_blocked();
    program.signal(Signal::KILL);
    assert_eq!(program.wait().and_then(|s| s.signal()), Some(9));
    drop(stopped_ost);
    let other = cluster.fs.add_mount("other", 8);
    let written = || fs::read(other.join("f")).is_ok_and(|read| read == b"lastt");
    assert!(holds_within(SLACK, written));
    nacre_ok(&["umount", text(&other)]);
    cluster.stop();
}

/// Metadata operations wait for the MDT. An interrupted operation takes effect completely or not at
/// all, and the client closes a file that it opened.
#[test]
fn signals_interrupt_every_wait_for_an_unresponsive_mdt() {
    let cluster = TwoOstFs::new();
    let program = cluster.mount.join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    cluster.drop_caches();
    let mdt = StoppedProcess::new(cluster.fs.site.pid_in("mdt").into());
    let mut waiting: Vec<Program> = [
        "os.mkdir(path + '/d')",
        "os.open(path + '/new', os.O_CREAT | os.O_RDWR)",
        "os.open(path + '/true', os.O_RDWR)",
        "os.listdir(path)",
        "os.chmod(path + '/true', 0o700)",
        "os.getxattr(path + '/true', 'user.x')",
        "fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)",
    ]
    .into_iter()
    .map(|wait| Program::python(wait, &cluster.mount))
    .collect();
    for program in &waiting {
        // Some programs wait in the kernel for another program, which waits for the MDT.
        let wchan = || fs::read_to_string(format!("/proc/{}/wchan", program.child.id()));
        let inside =
            |at: String| at == "request_wait_answer" || at.contains("rwsem") || at.contains("d_alloc");
        assert!(holds_within(SLACK, || wchan().is_ok_and(inside)), "{:?}", wchan());
    }
    waiting.iter().for_each(|program| program.signal(Signal::KILL));
    for program in &mut waiting {
        assert_eq!(program.wait().and_then(|s| s.signal()), Some(9));
    }
    drop(mdt);
    let runs = || Command::new(&program).status().is_ok_and(|s| s.success());
    assert!(holds_within(SLACK, runs), "the file is still open for writing");
    cluster.stop();
}

/// Number of concurrent stats of files on the unresponsive target.
const WAITING_STATS: usize = 200;

/// Number of threads of this process that wait for an answer of a mount.
fn count_waiting_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let waits =
        |dir: PathBuf| fs::read_to_string(dir.join("wchan")).is_ok_and(|at| at == "request_wait_answer");
    tasks.filter(|task| waits(task.path())).count()
}

#[test]
fn only_sizes_and_data_on_an_unresponsive_ost_wait() {
    let cluster = TwoOstFs::new();
    let path_of = |name: &str| text(&cluster.mount.join(name)).to_owned();
    let on_first_ost = cluster.create_file("on0", 0);
    nacre_ok(&["lfs", "setstripe", "-c", "1", "-i", "1", text(&cluster.mount)]);
    let create_on_second_ost = |name: &str| {
        let path = cluster.mount.join(name);
        fs::write(&path, name).unwrap();
        path
    };
    let on_second_ost = create_on_second_ost("on1");
    create_on_second_ost("to-remove");
    create_on_second_ost("to-move");
    let files: Vec<PathBuf> = (0..WAITING_STATS)
        .map(|i| create_on_second_ost(&format!("f{i:03}")))
        .collect();
    nacre_ok(&["lfs", "setstripe", "-d", text(&cluster.mount)]);
    cluster.drop_caches();
    let stopped_ost = cluster.hang_second_ost();
    let stats: Vec<_> = files
        .into_iter()
        .map(|path| std::thread::spawn(move || fs::metadata(path).map(|meta| meta.len())))
        .collect();
    assert!(
        holds_within(SLACK, || count_waiting_threads() >= WAITING_STATS),
        "{}",
        count_waiting_threads()
    );

    let names = sh_within_limit(&format!("ls -U {}", text(&cluster.mount)));
    assert_eq!(names.lines().count(), WAITING_STATS + 4);
    assert!(sh_within_limit(&format!("echo {}", path_of("f*9"))).contains(&path_of("f199")));
    let objects = sh_within_limit(&format!(
        "{} lfs getstripe {}",
        env!("CARGO_BIN_EXE_nacre"),
        text(&on_second_ost)
    ));
    assert!(objects.contains("lmm_stripe_offset: 1"), "{objects}");
    assert_eq!(sh_within_limit(&format!("cat {}", text(&on_first_ost))), "on0");
    sh_within_limit(&format!("stat {}", text(&on_first_ost)));
    // The MDT detects the unresponsive OST when it creates files there.
    let mdt_log = cluster.fs.site.path("mdt/nacre.log");
    let mut probes = 0;
    let is_detected = holds_within(SLACK, || {
        probes += 1;
        fs::File::create(path_of(&format!("probe{probes}"))).unwrap();
        fs::read_to_string(&mdt_log)
            .unwrap()
            .contains("lus-OST0001-osc-MDT0000: no reply to statfs")
    });
    assert!(is_detected);
    sh_within_limit(&format!(
        "for i in 1 2 3 4; do echo $i > {}$i; done",
        path_of("new")
    ));
    sh_within_limit(&format!("cat {} {}", path_of("new1"), path_of("new4")));
    sh_within_limit(&format!("mkdir {} && rmdir {}", path_of("d"), path_of("d")));
    sh_within_limit(&format!("unlink {}", path_of("to-remove")));
    // A new link asks for the file's permissions while the kernel has the directory locked.
    let link = std::thread::spawn({
        let (from, to) = (path_of("on1"), path_of("linked"));
        move || fs::hard_link(from, to)
    });
    sh_within_limit(&format!("ls -U {}", text(&cluster.mount)));
    sh_within_limit(&format!("echo new > {}", path_of("beside")));
    assert!(holds_within(SLACK, || link.is_finished()));
    link.join().unwrap().unwrap();
    sh_within_limit(&format!(
        "python3 -c 'import os; os.rename(\"{}\", \"{}\")'",
        path_of("to-move"),
        path_of("moved")
    ));
    sh_within_limit(&format!(
        "python3 -c 'import os; os.chmod(\"{}\", 0o600)'",
        path_of("moved")
    ));

    assert!(holds_within(SLACK, || cluster.log().contains("no answer since")));
    assert!(cluster.log().contains("lus-OST0001"));
    drop(stopped_ost);
    for stat in stats {
        assert_eq!(stat.join().unwrap().unwrap(), 4);
    }
    assert_eq!(fs::read(path_of("moved")).unwrap(), b"to-move");
    assert!(holds_within(SLACK, || cluster
        .log()
        .contains("the target answers again")));
    cluster.stop();
}

/// A Python function that executes an operation and returns its errno, or 0.
const ATTEMPT: &str = "def attempt(act):\n\
                   \x20   try:\n\
                   \x20       act(); return 0\n\
                   \x20   except OSError as e:\n\
                   \x20       return e.errno\n";

/// A mount that does not reconnect to a restarted OST in time is evicted. Data that was only in a
/// mapping or in the mount's cache is lost.
#[test]
fn descriptors_with_lost_data_keep_failing_after_an_ost_restart() {
    let mut cluster = TwoOstFs::new();
    for (name, change) in [
        ("mapped", "m[100:103] = b'new'"),
        ("written", "os.pwrite(fd, b'new', 100)"),
    ] {
        let path = cluster.create_file(name, 1);
        fs::write(&path, vec![b'-'; 8192]).unwrap();
        // Another mount writes this file: this one only has it in its cache.
        let clean = cluster.fs.mount_point().join(format!("{name}.clean"));
        fs::write(&clean, "clean").unwrap();
        sh(&format!("sync {} {}", text(&path), text(&clean)));
        let mut program = Program::python(
            &format!(
                "{ATTEMPT}\
                 fd = os.open(path, os.O_RDWR)\n\
                 reader = os.open(path, os.O_RDONLY)\n\
                 clean = os.open(path + '.clean', os.O_RDWR)\n\
                 os.pread(clean, 9, 0)\n\
                 os.pwrite(fd, b'-', 0)\n\
                 os.fsync(fd)\n\
                 m = mmap.mmap(fd, 8192)\n\
                 m[0], m[4096]\n\
                 print('ready', flush=True)\n\
                 sys.stdin.readline()\n\
                 {change}\n\
                 print('changed', flush=True)\n\
                 sys.stdin.readline()\n\
                 for at in (4096, 100):\n\
                 \x20   for i in range(600):\n\
                 \x20       child = os.fork()\n\
                 \x20       if child == 0:\n\
                 \x20           m[at]; os._exit(0)\n\
                 \x20       died = os.WTERMSIG(os.waitpid(child, 0)[1])\n\
                 \x20       if died: break\n\
                 \x20       time.sleep(0.1)\n\
                 \x20   print(died, flush=True)\n\
                 acts = [lambda: os.pread(fd, 9, 0), lambda: os.pwrite(fd, b'x', 0), lambda: os.fsync(fd),\n\
                 \x20   lambda: os.pread(reader, 9, 0), lambda: os.pread(clean, 9, 0), lambda: os.fsync(clean)]\n\
                 print([attempt(act) for act in acts], flush=True)\n\
                 print([attempt(act) for act in acts], flush=True)\n\
                 new = os.open(path, os.O_RDWR)\n\
                 print(os.pread(new, 3, 100), os.pwrite(new, b'N', 0), attempt(lambda: os.fsync(new)), flush=True)\n\
                 print(attempt(lambda: os.close(fd)), flush=True)"
            ),
            &path,
        );
        assert_eq!(program.next_line(), "ready");
        let losses_before = cluster.log().matches("is lost").count();
        let stopped_ost = cluster.hang_second_ost();
        program.resume();
        assert_eq!(program.next_line(), "changed");
        let stopped_mount = cluster.stop_mount();
        cluster.fs.site.kill("ost2");
        drop(stopped_ost);
        cluster.fs.start_second_ost("ost2", SECOND_OST);
        cluster.wait_until_recovered("ost2");
        drop(stopped_mount);
        let loss_logged = || cluster.log().matches("is lost").count() > losses_before;
        assert!(holds_within(SLACK, loss_logged), "{}", cluster.log());
        program.resume();
        let sigbus = Signal::BUS.as_raw().to_string();
        assert_eq!(
            [program.next_line(), program.next_line()],
            [sigbus.clone(), sigbus]
        );
        for _ in 0..2 {
            assert_eq!(program.next_line(), "[5, 5, 5, 5, 0, 0]", "{name}");
        }
        assert_eq!(program.next_line(), "b'---' 1 0");
        assert_eq!(program.next_line(), "5");
        assert_eq!(program.wait().and_then(|s| s.code()), Some(0));
    }
    cluster.stop();
}

/// Other clients may get the locks of a program after the MDT has evicted its client.
#[test]
fn descriptors_with_lost_locks_keep_failing_after_an_mdt_restart() {
    let mut cluster = TwoOstFs::new();
    let path = cluster.create_file("f", 0);
    let mut program = Program::python(
        &format!(
            "{ATTEMPT}\
             fds = [os.open(path, os.O_RDWR) for i in range(2)]\n\
             fcntl.lockf(fds[0], fcntl.LOCK_EX, 10, 0)\n\
             print('ready', flush=True)\n\
             sys.stdin.readline()\n\
             acts = [lambda fd: os.pread(fd, 9, 0), lambda fd: os.fsync(fd), lambda fd: fcntl.lockf(fd, fcntl.LOCK_SH)]\n\
             print([attempt(lambda: act(fds[0])) for act in acts], flush=True)\n\
             print(attempt(lambda: os.pread(fds[1], 9, 0)), flush=True)\n\
             new = os.open(path, os.O_RDWR)\n\
             print([attempt(lambda: act(new)) for act in acts], flush=True)"
        ),
        &path,
    );
    assert_eq!(program.next_line(), "ready");
    let stopped_mount = cluster.stop_mount();
    cluster.fs.site.kill("mdt");
    cluster.fs.start_server("mdt");
    cluster.wait_until_recovered("mdt");
    drop(stopped_mount);
    // The client notices the eviction when it sends a request to the MDT.
    let loss_logged = || {
        let _ = fs::metadata(cluster.mount.join("no-such-name"));
        cluster
            .log()
            .contains("are lost; the descriptors that took them fail")
    };
    assert!(holds_within(SLACK, loss_logged), "{}", cluster.log());
    program.resume();
    assert_eq!(program.next_line(), "[5, 5, 5]");
    assert_eq!(program.next_line(), "0");
    assert_eq!(program.next_line(), "[0, 0, 0]");
    assert_eq!(program.wait().and_then(|s| s.code()), Some(0));
    cluster.stop();
}
