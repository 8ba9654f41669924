//! Who a process works for, as /proc says it: its user, its groups, the signals that it would act on.

use crate::cred::{Cred, Groups};
use std::io;
use std::sync::Arc;

/// The status of a process, read once.
pub struct ProcessStatus(String);

impl ProcessStatus {
    /// That of a process or thread. One that is gone has nothing.
    pub fn of(pid: u32) -> ProcessStatus {
        ProcessStatus(std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim)
    }

    /// Its supplementary groups.
    pub fn groups(&self) -> Arc<[u32]> {
        let groups = self.field("Groups").unwrap_or_default().split_whitespace();
        groups.filter_map(|g| g.parse().ok()).collect()
    }

    /// Whether it has a signal that it would act on, were it not waiting for us: then a wait without end must end.
    pub fn is_signalled(&self) -> bool {
        let mask = |name| {
            self.field(name)
                .and_then(|v| u64::from_str_radix(v, 16).ok())
                .unwrap_or(0)
        };
        let pending = mask("SigPnd") | mask("ShdPnd");
        pending & !mask("SigBlk") & !mask("SigIgn") != 0
    }

    /// Its effective user or group.
    fn effective(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_whitespace().nth(1)?.parse().ok()
    }

    fn cred(&self, pid: u32) -> Option<Cred> {
        Some(Cred {
            uid: self.effective("Uid")?,
            gid: self.effective("Gid")?,
            groups: Groups::Known(self.groups()),
            umask: u32::from_str_radix(self.field("Umask")?, 8).ok()?,
            pid,
        })
    }
}

impl Cred {
    /// The effective user and groups of this process, and its umask, as they are now.
    pub fn of_this_process() -> io::Result<Cred> {
        let status = ProcessStatus(std::fs::read_to_string("/proc/self/status")?);
        let unread = || io::Error::other("/proc/self/status does not say who this process works for");
        status.cred(std::process::id()).ok_or_else(unread)
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
    fn the_effective_user_counts() {
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
        assert!(status(STATUS).is_signalled());
        for (field, was) in [
            ("SigBlk:\t", "0000000000010000"),
            ("SigIgn:\t", "0000000000384004"),
        ] {
            let now = STATUS.replace(&format!("{field}{was}"), &format!("{field}0000000000000100"));
            assert!(!status(&now).is_signalled());
        }
        assert!(!status("").is_signalled());
    }
}
