//! Mount options of `nacre mount` and `nacre up`: the supported ones of mount(8) and mount.lustre.
//! Options that only describe Nacre's fixed behaviour are accepted without effect; other options of
//! Lustre that a mount can do without are ignored with a note.

use anyhow::{Context, Result, bail};
use client::Atime;
use std::process::ExitCode;
use wire::Nid;

use crate::output::errln;
use crate::{output, process};

/// Parsed mount options. By default, programs can be executed, set-user-ID bits are ignored and
/// device files cannot be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MountFlags {
    pub(crate) read_only: bool,
    pub(crate) atime: Atime,
    pub(crate) no_diratime: bool,
    /// Respect set-user-ID and set-group-ID bits.
    pub(crate) suid: bool,
    /// Allow opening device files.
    pub(crate) dev: bool,
    pub(crate) no_exec: bool,
    /// Every user may use FIDs (`lfs fid2path`, `rmfid`).
    pub(crate) user_fid2path: bool,
    /// A close does not wait for the file's data.
    pub(crate) lazy_close: bool,
    /// A failed mount does not fail the command.
    pub(crate) nofail: bool,
    /// Change the flags of an existing mount.
    pub(crate) remount: bool,
    /// The client's address, like the option `--listen`, which a line of fstab cannot contain.
    pub(crate) listen: Option<Nid>,
}

/// Options that mount(8) copies from the mount table for `-o remount`; ignored.
const MOUNT_TABLE_OPTIONS: [&str; 4] = ["user_id=", "group_id=", "default_permissions", "allow_other"];

/// Options that describe Nacre's fixed behaviour.
const FIXED_OPTIONS: [&str; 7] = [
    "flock",
    "user_xattr",
    "acl",
    "checksum",
    "defaults",
    "noencrypt",
    "_netdev",
];

/// Options of Lustre that have no effect, with the reason that a note gives to the user.
const IGNORED_OPTIONS: [(&str, &str); 8] = [
    ("localflock", "locks of flock and fcntl hold on all clients"),
    ("noflock", "locks of flock and fcntl hold on all clients"),
    ("lazystatfs", "df never waits for a target without an answer"),
    ("nolazystatfs", "df never waits for a target without an answer"),
    ("statfs_project", "Nacre has no project quotas"),
    ("nostatfs_project", "Nacre has no project quotas"),
    ("verbose", "the log has all messages"),
    ("noverbose", "the log has all messages"),
];

/// The reason for which an option is ignored, if it is.
fn ignored_reason(option: &str) -> Option<&'static str> {
    if option
        .strip_prefix("retry=")
        .is_some_and(|n| n.parse::<u32>().is_ok())
    {
        return Some("the command tries each address of the MGS once; systemd can repeat it");
    }
    let found = IGNORED_OPTIONS.iter().find(|(name, _)| *name == option);
    found.map(|(_, reason)| *reason)
}

impl MountFlags {
    /// Prints a note for each option without effect.
    pub(crate) fn print_notes(options: &[String]) {
        for option in options {
            if let Some(reason) = ignored_reason(option) {
                errln!("nacre: mount option '{option}' has no effect: {reason}");
            }
        }
    }

    /// Parses options; a later option overrides an earlier one that contradicts it.
    ///
    /// # Errors
    /// An option is unknown or needs root.
    pub(crate) fn parse(options: &[String]) -> Result<MountFlags> {
        MountFlags::parse_as(options, process::uid() == 0)
    }

    fn parse_as(options: &[String], is_root: bool) -> Result<MountFlags> {
        let mut flags = MountFlags::default();
        for option in options {
            if !flags.apply(option, is_root)? {
                bail!(
                    "mount option '{option}' is not known: use ro, rw, relatime, strictatime, noatime, nodiratime, suid, dev, \
                     noexec, user_fid2path, lazyclose, nofail, listen=NID or remount (flock, user_xattr, acl, _netdev and others have no \
                     effect); leave other options of Lustre out"
                );
            }
        }
        Ok(flags)
    }

    /// The options without the unknown ones.
    pub(crate) fn known_options(mut options: Vec<String>) -> Vec<String> {
        options.retain(|option| !matches!(MountFlags::default().apply(option, true), Ok(false)));
        options
    }

    /// Applies an option. Returns `false` if the option is unknown.
    fn apply(&mut self, option: &str, is_root: bool) -> Result<bool> {
        if let Some(atime) = Atime::from_option(option) {
            self.atime = atime;
            return Ok(true);
        }
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "diratime" => self.no_diratime = false,
            "nodiratime" => self.no_diratime = true,
            "suid" | "dev" if !is_root => bail!(
                "mount option '{option}' needs root: fusermount3, which mounts for other users, always adds nosuid and nodev"
            ),
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            "nofail" => self.nofail = true,
            "remount" if !is_root => bail!("mount option 'remount' needs root"),
            "remount" => self.remount = true,
            known if MOUNT_TABLE_OPTIONS.iter().any(|o| known.starts_with(o)) => {}
            "user_fid2path" => self.user_fid2path = true,
            "nouser_fid2path" => self.user_fid2path = false,
            "lazyclose" => self.lazy_close = true,
            "nolazyclose" => self.lazy_close = false,
            fixed if FIXED_OPTIONS.contains(&fixed) => {}
            ignored if ignored_reason(ignored).is_some() => {}
            _ => match option.strip_prefix("listen=") {
                Some(nid) => {
                    self.listen = Some(nid.parse().with_context(|| format!("mount option '{option}'"))?)
                }
                None => return Ok(false),
            },
        }
        Ok(true)
    }

    /// The flags for mount(2).
    pub(crate) fn kernel_flags(&self) -> rustix::mount::MountFlags {
        use rustix::mount::MountFlags as Kernel;
        let when = |condition, flag| if condition { flag } else { Kernel::empty() };
        when(self.read_only, Kernel::RDONLY)
            | when(!self.suid, Kernel::NOSUID)
            | when(!self.dev, Kernel::NODEV)
            | when(self.no_exec, Kernel::NOEXEC)
            | fuse::atime_flags(self.atime, !self.no_diratime)
    }

    /// The result of a command that mounts. With `nofail`, prints an error instead of returning it.
    pub(crate) fn apply_nofail(&self, outcome: Result<ExitCode>) -> Result<ExitCode> {
        match outcome {
            Err(e) if self.nofail => {
                errln!(
                    "nacre: not mounted, which nofail allows: {}",
                    output::describe(&e)
                );
                Ok(ExitCode::SUCCESS)
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::MountFlags;

    fn parse(options: &str, is_root: bool) -> Result<MountFlags, String> {
        let options: Vec<String> = options.split(',').map(str::to_owned).collect();
        MountFlags::parse_as(&options, is_root).map_err(|e| e.to_string())
    }

    #[test]
    fn suid_and_dev_are_off_by_default_and_need_root() {
        let flags = parse("defaults", true).unwrap();
        assert!(!flags.suid && !flags.dev && !flags.no_exec);
        let flags = parse("suid,dev,noexec", true).unwrap();
        assert!(flags.suid && flags.dev && flags.no_exec);
        let flags = parse("suid,dev,noexec,nosuid,nodev,exec", true).unwrap();
        assert!(!flags.suid && !flags.dev && !flags.no_exec);
        for option in ["suid", "dev"] {
            let error = parse(option, false).unwrap_err();
            assert!(error.contains(option) && error.contains("needs root"), "{error}");
        }
        assert!(parse("nosuid,nodev,noexec", false).unwrap().no_exec);
    }

    #[test]
    fn options_of_lustre_that_nacre_does_without_are_ignored() {
        let line = "flock,user_xattr,lazystatfs,localflock,retry=5,checksum,noatime,_netdev";
        assert!(parse(line, false).unwrap() == parse("noatime", false).unwrap());
        for option in ["nochecksum", "retry=many", "skpath=/k"] {
            let error = parse(option, false).unwrap_err();
            assert!(error.contains(option) && error.contains("leave"), "{error}");
        }
        assert!(super::ignored_reason("flock").is_none() && super::ignored_reason("retry=5").is_some());
    }

    #[test]
    fn closes_wait_unless_the_last_option_says_otherwise() {
        let is_lazy = |options| parse(options, false).unwrap().lazy_close;
        assert!(!is_lazy("defaults") && is_lazy("lazyclose") && !is_lazy("lazyclose,nolazyclose"));
    }

    #[test]
    fn listen_option_takes_a_nid() {
        let flags = parse("_netdev,listen=10.0.0.7@tcp1,ro", false).unwrap();
        assert_eq!(flags.listen, Some("10.0.0.7@tcp1".parse().unwrap()));
        assert!(flags.read_only);
        let error = parse("listen=here", false).unwrap_err();
        assert!(error.contains("listen=here"), "{error}");
    }

    #[test]
    fn failed_mount_with_nofail_is_a_success() {
        let failed = || Err(anyhow::anyhow!("no answer"));
        assert!(parse("nofail", false).unwrap().apply_nofail(failed()).is_ok());
        assert!(parse("rw", false).unwrap().apply_nofail(failed()).is_err());
    }
}
