//! Who asks, as far as a FUSE request does not say it: supplementary groups and pending signals, from /proc.

use client::{Cred, Groups};
use std::sync::Arc;

/// The caller of a request. Its supplementary groups are looked up only when something depends on them.
pub(crate) fn cred(req: &fuser::Request, umask: u32) -> Cred {
    let pid = req.pid();
    Cred {
        uid: req.uid(),
        gid: req.gid(),
        groups: Groups::Lazy(Arc::new(move || groups_of(pid))),
        pid,
        umask,
    }
}

fn status(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
}

fn groups_of(pid: u32) -> Arc<[u32]> {
    parse_groups(&status(pid))
}

fn parse_groups(status: &str) -> Arc<[u32]> {
    field(status, "Groups")
        .map_or_else(Vec::new, |l| {
            l.split_whitespace().filter_map(|g| g.parse().ok()).collect()
        })
        .into()
}

/// Whether a thread has a signal that it would act on, were it not waiting for us: then a wait without end must end.
pub(crate) fn is_signalled(pid: u32) -> bool {
    parse_signalled(&status(pid))
}

fn parse_signalled(status: &str) -> bool {
    let mask = |name| {
        field(status, name)
            .and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = mask("SigPnd") | mask("ShdPnd");
    pending & !mask("SigBlk") & !mask("SigIgn") != 0
}

#[cfg(test)]
mod tests {
    use super::{parse_groups, parse_signalled};

    const STATUS: &str = "Name:\tbash\nGroups:\t4 27 1000 \nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n\
                          SigBlk:\t0000000000010000\nSigIgn:\t0000000000384004\n";

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(&parse_groups(STATUS)[..], [4, 27, 1000]);
        assert!(parse_groups("").is_empty());
    }

    #[test]
    fn a_pending_signal_counts_unless_it_is_blocked_or_ignored() {
        assert!(parse_signalled(STATUS));
        assert!(!parse_signalled(
            &STATUS.replace("SigBlk:\t0000000000010000", "SigBlk:\t0000000000000100")
        ));
        assert!(!parse_signalled(
            &STATUS.replace("SigIgn:\t0000000000384004", "SigIgn:\t0000000000000100")
        ));
        assert!(!parse_signalled(""));
    }
}
