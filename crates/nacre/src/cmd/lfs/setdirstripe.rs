//! `lfs mkdir` and `setdirstripe`: directories on chosen MDTs, and default layouts of directories.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{XattrFlags, removexattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;
use wire::dir_hash::HASH_NAMES;
use wire::{
    LMV_HASH_FLAG_OVERSTRIPED, LMV_INHERIT_DEFAULT_OVERSTRIPED, LMV_INHERIT_DEFAULT_PLAIN,
    LMV_INHERIT_DEFAULT_STRIPED, LMV_INHERIT_MAX, LMV_INHERIT_NONE, LMV_INHERIT_RR_DEFAULT,
    LMV_INHERIT_RR_MAX, LMV_INHERIT_RR_NONE, LMV_INHERIT_RR_UNLIMITED, LMV_INHERIT_UNLIMITED,
    LMV_MAX_STRIPE_COUNT, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LMV_USER_MAGIC_SPECIFIC, LmvUserMdV1,
    LmvUserMdsData, WireStruct,
};

use super::{ask, relative_to_mount};
use crate::cli::Setdirstripe;
use crate::control::Request;
use crate::process;

/// The extended attribute with a directory's default directory layout.
pub(super) const DEFAULT_XATTR: &str = "lustre.dmv";

/// The least count of `-C`: five stripes on each MDT.
const OVERSTRIPE_COUNT_MIN: i32 = -5;

/// Runs the command.
pub(super) fn run(args: &Setdirstripe) -> Result<()> {
    if args.delete {
        return args.paths.iter().try_for_each(|path| delete_default(path));
    }
    let layout = layout(args)?;
    if args.default {
        return args.paths.iter().try_for_each(|path| set_default(path, &layout));
    }
    let mode = mode(args.mode.as_deref())?;
    args.paths.iter().try_for_each(|path| mkdir(path, mode, &layout))
}

/// The permissions of a new directory, and the umask: the given permissions are exact.
fn mode(text: Option<&str>) -> Result<(u32, u32)> {
    let Some(text) = text else {
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        return Ok((0o777, umask.bits()));
    };
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    let mode = mode.with_context(|| format!("'{text}' is not a mode: use an octal number such as 750"))?;
    Ok((mode, 0))
}

/// The layout to request (`lmv_user_md`).
fn layout(args: &Setdirstripe) -> Result<Vec<u8>> {
    let mdts = args.mdt_index.as_deref().map(parse_mdts).transpose()?;
    let overstriped = args.mdt_overcount.is_some();
    let count = count(args)?;
    let first = mdts.as_ref().and_then(|mdts| mdts.first().copied());
    let is_list = mdts.as_ref().is_some_and(|mdts| mdts.len() > 1);
    if args.default && is_list {
        bail!("-D takes one index for -i: a default layout with a list would stripe every new directory");
    }
    let mut stripes = count.unwrap_or(match (first, is_list, args.default) {
        // Nothing chosen: a directory on the MDT with the most free space.
        (None, ..) => 1,
        (Some(LMV_OFFSET_DEFAULT), _, true) => 1,
        _ => 0,
    });
    let mut objects = Vec::new();
    if let Some(mdts) = mdts.filter(|_| is_list) {
        if count.is_some_and(|count| count != mdts.len() as i32) {
            bail!("-c contradicts -i, which lists {} MDTs: leave -c out", mdts.len());
        }
        stripes = mdts.len() as i32;
        for lum_mds in mdts {
            let object = LmvUserMdsData {
                lum_mds,
                ..LmvUserMdsData::default()
            };
            objects.extend_from_slice(&object.to_bytes());
        }
    }
    if args.max_inherit_rr.is_some() && first.is_some_and(|first| first != LMV_OFFSET_DEFAULT) {
        bail!("--max-inherit-rr takes MDTs in turn, so it needs -i -1");
    }
    let max_inherit = match args.max_inherit {
        Some(levels) => inherit(levels, LMV_INHERIT_NONE, LMV_INHERIT_UNLIMITED, LMV_INHERIT_MAX)?,
        None if overstriped => LMV_INHERIT_DEFAULT_OVERSTRIPED as u8,
        None if (0..=1).contains(&stripes) => LMV_INHERIT_DEFAULT_PLAIN as u8,
        None => LMV_INHERIT_DEFAULT_STRIPED as u8,
    };
    let max_inherit_rr = match args.max_inherit_rr {
        Some(levels) => inherit(
            levels,
            LMV_INHERIT_RR_NONE,
            LMV_INHERIT_RR_UNLIMITED,
            LMV_INHERIT_RR_MAX,
        )?,
        None => LMV_INHERIT_RR_DEFAULT as u8,
    };
    let head = LmvUserMdV1 {
        lum_magic: match is_list {
            true => LMV_USER_MAGIC_SPECIFIC,
            false => LMV_USER_MAGIC,
        },
        lum_stripe_count: stripes,
        lum_stripe_offset: first.unwrap_or(LMV_OFFSET_DEFAULT),
        lum_hash_type: hash(args.mdt_hash.as_deref())?
            | if overstriped { LMV_HASH_FLAG_OVERSTRIPED } else { 0 },
        lum_max_inherit: max_inherit,
        lum_max_inherit_rr: max_inherit_rr,
        ..LmvUserMdV1::default()
    };
    Ok([&head.to_bytes()[..], &objects].concat())
}

/// The number of stripes, if given.
fn count(args: &Setdirstripe) -> Result<Option<i32>> {
    let max = LMV_MAX_STRIPE_COUNT as i32;
    match (args.mdt_count, args.mdt_overcount) {
        (Some(-1) | None, None) => Ok(args.mdt_count),
        (Some(n), _) if (0..=max).contains(&n) => Ok(Some(n)),
        (Some(n), _) => {
            bail!("a number of MDTs is from 0 to {max}, or -1 for all, not {n}")
        }
        (None, Some(n)) if (OVERSTRIPE_COUNT_MIN..0).contains(&n) || (1..=max).contains(&n) => Ok(Some(n)),
        (None, Some(n)) => bail!(
            "-C is from 1 to {max}, or -1 to {OVERSTRIPE_COUNT_MIN} for 1 to 5 stripes on each MDT, not {n}"
        ),
    }
}

/// A number of levels on the wire: `0` means none, `-1` all.
fn inherit(levels: i32, none: u32, unlimited: u32, max: u32) -> Result<u8> {
    match levels {
        0 => Ok(none as u8),
        -1 => Ok(unlimited as u8),
        1.. if levels as u32 <= max => Ok(levels as u8),
        _ => bail!("a number of levels is from 0 to {max}, or -1 for all, not {levels}"),
    }
}

/// The number of a hash type; 0: the server's default.
fn hash(name: Option<&str>) -> Result<u32> {
    let Some(name) = name else { return Ok(0) };
    let known = HASH_NAMES.iter().find(|(_, known)| *known == name);
    let names = HASH_NAMES.map(|(_, name)| name).join(", ");
    known
        .map(|(hash, _)| *hash)
        .with_context(|| format!("'{name}' is not a hash function: use one of {names}"))
}

/// Parses indices and ranges of MDTs, separated by commas, or -1 for any.
fn parse_mdts(text: &str) -> Result<Vec<u32>> {
    if text == "-1" {
        return Ok(vec![LMV_OFFSET_DEFAULT]);
    }
    let mut mdts: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let parse = |n: &str| {
            let index = n.parse::<u16>().ok().map(u32::from);
            index.with_context(|| format!("'{part}' is not an MDT: use an index, a range 0-3, or -1"))
        };
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (parse(low)?, parse(high)?);
        if low > high {
            bail!("'{part}' is a range from high to low: write {high}-{low}");
        }
        if mdts.len() + (high - low) as usize >= LMV_MAX_STRIPE_COUNT as usize {
            bail!("the list has more than {LMV_MAX_STRIPE_COUNT} MDTs, the maximum: shorten it");
        }
        mdts.extend(low..=high);
    }
    Ok(mdts)
}

/// Creates a directory through the process of the mount, with the caller's rights.
fn mkdir(path: &Path, (mode, umask): (u32, u32), layout: &[u8]) -> Result<()> {
    let here = path.display();
    let name = path
        .file_name()
        .with_context(|| format!("{here}: the path does not end in a name"))?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let (record, mount) = process::by_path(dir)?;
    let request = Request::Mkdir {
        mountpoint: mount.mountpoint.clone(),
        path: relative_to_mount(dir, &mount)?.join(name),
        mode,
        umask,
        layout: layout.to_vec(),
    };
    ask::<Value>(&record, &request).map(drop)
}

fn set_default(path: &Path, layout: &[u8]) -> Result<()> {
    let here = path.display();
    match setxattr(path, DEFAULT_XATTR, layout, XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => bail!(
            "{here} is not on a mounted Nacre file system, or its servers have no striped directories (-c above 1)"
        ),
        Err(Errno::INVAL) => {
            bail!("{here}: the file system rejects this default layout (does the MDT exist?)")
        }
        Err(Errno::NOTDIR) => bail!("{here} is not a directory"),
        result => result.with_context(|| format!("cannot set the default layout of {here}")),
    }
}

fn delete_default(path: &Path) -> Result<()> {
    let here = path.display();
    match removexattr(path, DEFAULT_XATTR) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(Errno::OPNOTSUPP) => bail!("{here} is not on a mounted Nacre file system"),
        Err(e) => Err(e).with_context(|| format!("cannot delete the default layout of {here}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn head(args: &Setdirstripe) -> LmvUserMdV1 {
        LmvUserMdV1::from_bytes(&layout(args).unwrap()[..LmvUserMdV1::SIZE]).unwrap()
    }

    #[test]
    fn requests_are_those_of_lfs() {
        // `lfs mkdir -i 1` and `lfs mkdir -c 2` in the captures.
        let on_mdt = Setdirstripe {
            mdt_index: Some("1".into()),
            ..Setdirstripe::default()
        };
        let expected = LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_offset: 1,
            ..LmvUserMdV1::default()
        };
        assert_eq!(head(&on_mdt), expected);
        let striped = Setdirstripe {
            mdt_count: Some(2),
            ..Setdirstripe::default()
        };
        let expected = LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_count: 2,
            lum_stripe_offset: LMV_OFFSET_DEFAULT,
            lum_max_inherit: 3,
            ..LmvUserMdV1::default()
        };
        assert_eq!(head(&striped), expected);
        let neither = head(&Setdirstripe::default());
        assert_eq!(
            (neither.lum_stripe_count, neither.lum_stripe_offset),
            (1, LMV_OFFSET_DEFAULT)
        );
    }

    #[test]
    fn a_list_of_mdts_names_each_stripes_mdt() {
        let args = |index: &str, count| Setdirstripe {
            mdt_index: Some(index.into()),
            mdt_count: count,
            ..Setdirstripe::default()
        };
        let listed = layout(&args("2,0-1", None)).unwrap();
        assert_eq!(listed.len(), LmvUserMdV1::SIZE + 3 * LmvUserMdsData::SIZE);
        let head = head(&args("2,0-1", Some(3)));
        assert_eq!(
            (head.lum_magic, head.lum_stripe_count, head.lum_stripe_offset),
            (LMV_USER_MAGIC_SPECIFIC, 3, 2)
        );
        for (index, count, reason) in [
            ("0,1", Some(3), "contradicts"),
            ("1-0", None, "high to low"),
            ("x", None, "not an MDT"),
            ("", None, "not an MDT"),
            ("0-65535", None, "more than 2000"),
        ] {
            let error = layout(&args(index, count)).unwrap_err().to_string();
            assert!(error.contains(reason), "{index}: {error}");
        }
    }

    #[test]
    fn levels_hashes_and_counts_are_checked() {
        let levels = |n| inherit(n, LMV_INHERIT_NONE, LMV_INHERIT_UNLIMITED, LMV_INHERIT_MAX);
        assert_eq!([0, -1, 3, 250].map(|n| levels(n).unwrap()), [255, 0, 3, 250]);
        assert!(levels(251).is_err() && levels(-2).is_err());
        assert_eq!(hash(Some("crush2")).unwrap(), 4);
        assert!(hash(Some("md5")).is_err());
        for (mdt_count, mdt_overcount) in [
            (Some(2001), None),
            (Some(-2), None),
            (None, Some(0)),
            (None, Some(-6)),
        ] {
            let args = Setdirstripe {
                mdt_count,
                mdt_overcount,
                ..Setdirstripe::default()
            };
            assert!(layout(&args).is_err(), "{args:?}");
        }
        let in_turn = Setdirstripe {
            mdt_index: Some("1".into()),
            max_inherit_rr: Some(2),
            default: true,
            ..Setdirstripe::default()
        };
        assert!(layout(&in_turn).is_err());
    }
}
