//! `nacre mkfs`: formats a directory as a target, with the options of mkfs.lustre.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use node::{REPLACE_MARK, RandomSource, SERVER_NIDS_PARAM};
use osd::target::{TargetDir, TargetKind, TargetLabel};
use osd::{LocalFiles, TargetFiles};

use crate::cli::Mkfs;
use crate::output::{errln, outln, shell_word};
use crate::{daemon, token};

/// Maximum length of a file system's name in bytes.
const FSNAME_MAX: usize = wire::LUSTRE_MAXFSNAME as usize;

/// Maximum index of a target: 16 bits, without 0xffff, which means any OST.
const INDEX_MAX: u32 = 0xfffe;
/// Maximum index of an MDT: Lustre's file systems have at most 4096 MDTs.
const MDT_INDEX_MAX: u32 = 4095;

/// `f_type` of tmpfs, from statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Runs the command.
pub(crate) fn run(args: Mkfs) -> Result<ExitCode> {
    let dir = daemon::make_absolute(&args.dir)?;
    if [args.mgs, args.mdt, args.ost]
        .iter()
        .filter(|selected| **selected)
        .count()
        > 1
    {
        bail!(
            "{}: a directory holds one target: run mkfs for each target, with a directory of its own",
            dir.display()
        );
    }
    check_dir(&dir, args.reformat)?;
    if !args.mgs && (args.fsname.is_none() || args.mgsnode.is_empty()) {
        bail!(
            "an MDT or OST needs --fsname NAME and --mgsnode NID, the address of the MGS; only an MGS (--mgs) needs neither"
        );
    }
    check_place(&dir)?;
    let kind = match (args.mgs, args.mdt) {
        (true, _) => TargetKind::Mgs,
        (_, true) => TargetKind::Mdt,
        _ => TargetKind::Ost,
    };
    let index = match (kind, args.index) {
        (TargetKind::Ost, None) => bail!("an object target needs --index"),
        (_, index) => index.unwrap_or(0),
    };
    let mut label = new_label(kind, args.fsname.as_deref().unwrap_or_default(), index)?;
    label.mgsnode = args.mgsnode.into_iter().flat_map(|nids| nids.0).collect();
    label.service_nodes = args.servicenode.into_iter().flat_map(|nids| nids.0).collect();
    if let Some(list) = &args.server_nids {
        label
            .params
            .push((SERVER_NIDS_PARAM.to_owned(), list.to_string()));
    }
    let token = match (kind, &args.token_file) {
        (TargetKind::Mgs, _) => Some(token::generate()?),
        (_, file) => file.as_deref().map(token::read_file).transpose()?,
    };
    TargetDir::create(&dir, &label, |dir| {
        if args.replace {
            LocalFiles(dir.to_owned()).replace(REPLACE_MARK, b"")?;
        }
        match &token {
            Some(token) => token::write(dir, token).map_err(io::Error::other),
            None => Ok(()),
        }
    })?;
    if !args.quiet {
        outln!("created {} in {}", label.svname(), dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails for a device or file, and with `--reformat` for a directory with a target.
fn check_dir(dir: &Path, reformat: bool) -> Result<()> {
    let here = dir.display();
    if dir.exists() && !dir.is_dir() {
        bail!(
            "{here} is not a directory: Nacre stores a target in an empty or new directory, not on a device"
        );
    }
    match TargetLabel::read(dir) {
        Ok(label) if reformat => bail!(
            "{here} has {}, which --reformat does not overwrite: delete it first with `nacre destroy --yes {}`",
            label.svname(),
            shell_word(dir)
        ),
        _ => Ok(()),
    }
}

/// Fails for a directory in a pseudo file system of the kernel (`/dev`, `/proc`, `/sys`). Warns
/// about a directory in memory (tmpfs), which loses the target at the next boot.
fn check_place(dir: &Path) -> Result<()> {
    // The part that exists, without symbolic links.
    let place = dir.ancestors().find_map(|path| path.canonicalize().ok());
    let place = place.as_deref().unwrap_or(dir);
    let is_below = |top: &str| place.starts_with(top);
    if ["/dev", "/proc", "/sys"].into_iter().any(is_below) && !is_below("/dev/shm") {
        bail!(
            "{} is in {}, a file system of the kernel without disk: Nacre stores a target in a directory of a mounted disk; \
             make a file system on the device and mount it first",
            dir.display(),
            place.display()
        );
    }
    if rustix::fs::statfs(place).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC) {
        errln!(
            "nacre: {} is in memory (tmpfs): a restart of this machine loses the target",
            dir.display()
        );
    }
    Ok(())
}

/// The label of a new target. Fails for an invalid name or index.
pub(crate) fn new_label(kind: TargetKind, fsname: &str, index: u32) -> Result<TargetLabel> {
    if kind != TargetKind::Mgs {
        check_fsname(fsname)?;
        let max = match kind {
            TargetKind::Mdt => MDT_INDEX_MAX,
            _ => INDEX_MAX,
        };
        if index > max {
            bail!("index {index} is above the maximum, {max}");
        }
    }
    let uuid = RandomSource::system().uuid()?;
    Ok(TargetLabel::new(kind, fsname, index, &uuid))
}

/// Fails for an invalid file system name.
pub(crate) fn check_fsname(fsname: &str) -> Result<()> {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    if fsname.is_empty() || fsname.len() > FSNAME_MAX || !fsname.bytes().all(is_allowed) {
        bail!(
            "'{fsname}' is not a valid file system name: use 1 to {FSNAME_MAX} letters, digits, '_' or '-'"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn targets_are_not_created_in_file_systems_of_the_kernel() {
        for bad in ["/dev/nvme9n1", "/dev/new/ost0", "/sys/ost0", "/proc/self/ost0"] {
            let error = check_place(Path::new(bad)).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("mount it first"), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        check_place(&dir.path().join("new/ost0")).unwrap();
    }

    #[test]
    fn invalid_fsname_is_rejected() {
        for bad in ["", "ninechars", "a/b", "a b", "ä"] {
            assert!(check_fsname(bad).is_err(), "{bad}");
        }
        for good in ["a", "testfs", "fs_1-x"] {
            check_fsname(good).unwrap();
        }
    }
}
