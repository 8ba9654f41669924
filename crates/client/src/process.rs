//! State of processes and threads, read from `/proc`: credentials, pending signals, task flags, the
//! current system call.

use crate::cred::{Cred, Groups};
use std::io;
use std::sync::Arc;

/// Signals that request a program's end.
const TERMINATION_SIGNALS: u64 = signal_bit(libc::SIGHUP)
    | signal_bit(libc::SIGINT)
    | signal_bit(libc::SIGQUIT)
    | signal_bit(libc::SIGKILL)
    | signal_bit(libc::SIGTERM);
/// Signals that do not terminate the process by default.
const NONFATAL_SIGNALS: u64 = signal_bit(libc::SIGSTOP)
    | signal_bit(libc::SIGTSTP)
    | signal_bit(libc::SIGTTIN)
    | signal_bit(libc::SIGTTOU)
    | signal_bit(libc::SIGCONT)
    | signal_bit(libc::SIGCHLD)
    | signal_bit(libc::SIGURG)
    | signal_bit(libc::SIGWINCH);
/// Task flags from `/proc/PID/stat`: exiting, kernel thread.
const PF_EXITING: u64 = 0x4;
const PF_KTHREAD: u64 = 0x0020_0000;

/// The system calls that create hard links.
const LINK_CALLS: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    libc::SYS_linkat,
];

/// The bit of a signal in a mask.
const fn signal_bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// Whether a task is exiting, or is a kernel thread that closes files for exited tasks. No program
/// waits for a request of such a task. False if the task is gone.
pub fn is_exiting(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    flags_of(&stat).is_some_and(|flags| flags & (PF_EXITING | PF_KTHREAD) != 0)
}

/// The flags of a task: the seventh field after its name, which ends with the last parenthesis.
fn flags_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse().ok()
}

/// The session of a process or thread: the fourth field after its name.
pub(crate) fn session(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(3)?.parse().ok()
}

/// The name of a process or thread; empty if there is none with this ID.
pub(crate) fn name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// The value of an environment variable of a process, as it was at the start of its program.
pub(crate) fn environment_variable(pid: u32, name: &str) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Whether a task is in link(2) or linkat(2). False if `/proc` does not show the task's system
/// call.
pub fn is_linking(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|n| n.parse().ok());
    number.is_some_and(|number| LINK_CALLS.contains(&number))
}

/// A snapshot of `/proc/PID/status`.
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// Reads the status of a process or thread. If there is none with this ID, all fields are
    /// missing.
    pub fn of(pid: u32) -> ProcessStatus {
        ProcessStatus(std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim)
    }

    /// The supplementary groups.
    pub fn groups(&self) -> Arc<[u32]> {
        let groups = self.field("Groups").unwrap_or_default().split_whitespace();
        groups.filter_map(|g| g.parse().ok()).collect()
    }

    /// Whether a pending signal is neither blocked nor ignored. Such a signal must end a wait
    /// without a time limit.
    pub fn has_unblocked_signal(&self) -> bool {
        self.unblocked_signals() != 0
    }

    /// The signals in a mask of the status ([`signal_bit`]); 0 if the field is missing.
    fn mask(&self, name: &str) -> u64 {
        let set = self.field(name);
        set.and_then(|v| u64::from_str_radix(v, 16).ok()).unwrap_or(0)
    }

    /// Pending signals that are neither blocked nor ignored.
    fn unblocked_signals(&self) -> u64 {
        let pending = self.mask("SigPnd") | self.mask("ShdPnd");
        pending & !self.mask("SigBlk") & !self.mask("SigIgn")
    }

    /// Whether a pending signal without a handler will terminate the process as soon as it stops
    /// waiting for this client.
    pub fn has_fatal_signal(&self) -> bool {
        self.unblocked_signals() & !self.mask("SigCgt") & !NONFATAL_SIGNALS != 0
    }

    /// Whether a pending signal requests the program's end, even if the program handles it.
    pub fn has_termination_signal(&self) -> bool {
        self.has_fatal_signal() || self.unblocked_signals() & TERMINATION_SIGNALS != 0
    }

    /// The effective ID in the field `Uid` or `Gid`.
    fn effective_id(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_whitespace().nth(1)?.parse().ok()
    }

    fn cred(&self, pid: u32) -> Option<Cred> {
        Some(Cred {
            uid: self.effective_id("Uid")?,
            gid: self.effective_id("Gid")?,
            groups: Groups::Known(self.groups()),
            umask: u32::from_str_radix(self.field("Umask")?, 8).ok()?,
            pid,
        })
    }
}

impl Cred {
    /// The effective user and groups of this process and its umask, as they are now.
    ///
    /// # Errors
    ///
    /// `/proc/self/status` cannot be read or lacks a field.
    pub fn of_this_process() -> io::Result<Cred> {
        let status = ProcessStatus(std::fs::read_to_string("/proc/self/status")?);
        let missing_field = || io::Error::other("/proc/self/status lacks Uid, Gid or Umask");
        status.cred(std::process::id()).ok_or_else(missing_field)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::ProcessStatus;
    use crate::cred::Cred;

    const STATUS: &str = "Name:\tbash\nUmask:\t0027\nUid:\t1000\t1001\t1000\t1000\nGid:\t100\t101\t100\t100\n\
                          Groups:\t4 27 1000 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n\
                          SigBlk:\t0000000000010000\nSigIgn:\t0000000000384004\n";

    fn status(text: &str) -> ProcessStatus {
        ProcessStatus(text.to_owned())
    }

    #[test]
    fn credentials_have_the_effective_user_and_group() {
        let cred = status(STATUS).cred(7).unwrap();
        assert_eq!((cred.uid, cred.gid, cred.umask, cred.pid), (1001, 101, 0o027, 7));
        assert!(status("").cred(7).is_none());
        assert_eq!(Cred::of_this_process().unwrap().pid, std::process::id());
    }

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(&status(STATUS).groups()[..], [4, 27, 1000]);
        assert!(status("").groups().is_empty());
    }

    #[test]
    fn a_pending_signal_counts_unless_it_is_blocked_or_ignored() {
        assert!(status(STATUS).has_unblocked_signal());
        for (field, old) in [
            ("SigBlk:\t", "0000000000010000"),
            ("SigIgn:\t", "0000000000384004"),
        ] {
            let changed = STATUS.replace(&format!("{field}{old}"), &format!("{field}0000000000000100"));
            assert!(!status(&changed).has_unblocked_signal());
        }
        assert!(!status("").has_unblocked_signal());
    }

    #[test]
    fn fatal_and_termination_signals_are_told_apart_from_other_signals() {
        let with = |pending: i32, caught: i32| {
            let caught = if caught == 0 { 0 } else { super::signal_bit(caught) };
            status(&format!(
                "ShdPnd:\t{:016x}\nSigCgt:\t{caught:016x}\n",
                super::signal_bit(pending)
            ))
        };
        let outcome = |status: ProcessStatus| (status.has_termination_signal(), status.has_fatal_signal());
        assert_eq!(outcome(with(libc::SIGINT, 0)), (true, true));
        assert_eq!(outcome(with(libc::SIGINT, libc::SIGINT)), (true, false));
        assert_eq!(outcome(with(libc::SIGALRM, 0)), (true, true));
        assert_eq!(outcome(with(libc::SIGALRM, libc::SIGALRM)), (false, false));
        assert_eq!(outcome(with(libc::SIGTSTP, 0)), (false, false));
        assert_eq!(outcome(with(libc::SIGCHLD, 0)), (false, false));
        assert_eq!(outcome(with(libc::SIGKILL, 0)), (true, true));
    }

    #[test]
    fn task_flags_are_parsed_after_a_name_with_parentheses() {
        let stat = |flags: u64| format!("7 (a) b (c) S 1 7 7 0 -1 {flags} 0 0");
        assert_eq!(super::flags_of(&stat(0x40_0100)), Some(0x40_0100));
        assert_eq!(super::flags_of(""), None);
        assert!(!super::is_exiting(std::process::id()));
    }
}
