//! Layouts of files and default layouts of directories.

use crate::output::outln;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mdt::layout::{DEFAULT_STRIPE_COUNT, DEFAULT_STRIPE_SIZE};
use rustix::fs::{AtFlags, CWD, FileType, Mode, StatxFlags, XattrFlags, getxattr, mknodat, setxattr, statx};
use rustix::io::Errno;
use wire::LOV_PATTERN_RAID0;
use wire::striping::{LovLayout, PlainLayout};

/// The extended attribute to set a layout.
const SET_XATTR: &str = "lustre.lov";
/// The extended attribute to read a layout. Reading it causes no glimpse of the file's size.
const GET_XATTR: &str = "system.lustre.lov";
/// Maximum size of an extended attribute in Linux, in bytes.
const VALUE_MAX: usize = 65536;
/// Stripe sizes are multiples of this number of bytes.
const STRIPE_SIZE_UNIT: u64 = 64 << 10;
/// All OSTs as a stripe count; any OST as a stripe index.
const ANY: u16 = 0xffff;

/// The layout to set.
pub(super) struct LayoutRequest {
    layout: PlainLayout,
    delete: bool,
}

/// Selects the field to print instead of the complete layout: the first one that is set, if any.
#[derive(Clone, Copy)]
pub(super) struct FieldFilter {
    pub(super) stripe_count: bool,
    pub(super) stripe_size: bool,
    pub(super) stripe_index: bool,
}

impl LayoutRequest {
    /// A request from the command line. Missing values mean the file system's default; a request
    /// without any value deletes the default layout of a directory.
    pub(super) fn new(
        count: Option<i32>,
        size: Option<&str>,
        index: Option<i32>,
        delete: bool,
    ) -> Result<LayoutRequest> {
        if delete && (count.is_some() || size.is_some() || index.is_some()) {
            bail!("-d deletes the default layout and cannot be combined with other options");
        }
        let stripe_count = match count {
            None => 0,
            Some(-1) => ANY,
            Some(n @ 0..=2000) => n as u16,
            Some(n) => bail!("a stripe count is from 1 to 2000, or -1 for all OSTs, not {n}"),
        };
        let first = match index {
            None | Some(-1) => None,
            Some(n @ 0..=0xfffe) => Some(n as u16),
            Some(n) => bail!("a stripe index is the index of an OST, or -1 for any, not {n}"),
        };
        let stripe_size = size.map(parse_size).transpose()?.unwrap_or(0);
        Ok(LayoutRequest {
            layout: PlainLayout::request(stripe_size, stripe_count, first),
            delete,
        })
    }
}

/// Parses a stripe size: a number of bytes, with or without one of the suffixes K, M and G.
fn parse_size(text: &str) -> Result<u32> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        other => bail!("'{other}' is not a unit: use K, M or G"),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let bytes = bytes.with_context(|| format!("'{text}' is not a size"))?;
    if bytes % STRIPE_SIZE_UNIT != 0 {
        bail!("a stripe size is a multiple of 64K, not {text}");
    }
    u32::try_from(bytes).with_context(|| format!("a stripe size is less than 4G, not {text}"))
}

/// Creates a file with the layout, or sets the default layout of a directory.
pub(super) fn set(path: &Path, request: &LayoutRequest) -> Result<()> {
    let here = path.display();
    let is_dir = path.is_dir();
    if request.delete && !is_dir {
        bail!("{here}: only a directory's default layout can be deleted");
    }
    if !is_dir {
        match mknodat(CWD, path, FileType::RegularFile, Mode::from_raw_mode(0o644), 0) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                bail!("{here} exists already: the layout of a file is set when it is created")
            }
            Err(e) => return Err(e).with_context(|| format!("cannot create {here}")),
        }
    }
    let result = setxattr(path, SET_XATTR, &request.layout.build(), XattrFlags::empty());
    if result.is_err() && !is_dir {
        let _ = fs::remove_file(path);
    }
    match result {
        Err(Errno::OPNOTSUPP) => bail!("{here} is not on a mounted Nacre file system"),
        Err(Errno::INVAL) => {
            bail!("{here}: the file system rejects this layout (does the OST exist?)")
        }
        result => result.with_context(|| format!("cannot set the layout of {here}")),
    }
}

/// Prints a file's layout, or a directory's default; without `directory`, also the layouts of the
/// directory's entries.
pub(super) fn show(path: &Path, filter: &FieldFilter, directory: bool) -> Result<()> {
    if kind_of(path)? != FileType::Directory {
        return show_one(path, false, filter);
    }
    show_one(path, true, filter)?;
    if directory {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(path)?.flatten().map(|e| e.path()).collect();
    entries.sort();
    for entry in entries {
        match kind_of(&entry)? {
            FileType::Directory => show_one(&entry, true, filter)?,
            FileType::RegularFile => show_one(&entry, false, filter)?,
            _ => {}
        }
    }
    Ok(())
}

/// The type of a file; does not follow symbolic links and does not cause a glimpse of the size.
fn kind_of(path: &Path) -> Result<FileType> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::TYPE).with_context(|| format!("{}", path.display()))?;
    Ok(FileType::from_raw_mode(stat.stx_mode.into()))
}

fn show_one(path: &Path, is_dir: bool, filter: &FieldFilter) -> Result<()> {
    let one_field = filter.stripe_count || filter.stripe_size || filter.stripe_index;
    let mut value = vec![0; VALUE_MAX];
    let layout = match getxattr(path, GET_XATTR, &mut value) {
        Ok(len) => Some(LovLayout::parse(&value[..len]).with_context(|| format!("{}", path.display()))?),
        Err(Errno::NODATA) => is_dir.then(default_layout),
        Err(Errno::OPNOTSUPP) => bail!("{} is not on a mounted Nacre file system", path.display()),
        Err(e) => return Err(e).with_context(|| format!("{}", path.display())),
    };
    if !one_field {
        outln!("{}", path.display());
    }
    match layout {
        None => outln!("has no stripe info\n"),
        Some(layout) if one_field => outln!("{}", field(&layout, is_dir, filter)),
        Some(layout) => outln!("{}\n", text(&layout, is_dir)),
    }
    Ok(())
}

/// The layout of new files in a directory without a default layout.
fn default_layout() -> LovLayout {
    LovLayout::Plain(PlainLayout::request(
        DEFAULT_STRIPE_SIZE,
        DEFAULT_STRIPE_COUNT,
        None,
    ))
}

/// The component that represents a layout: of a composite layout, the last one.
fn plain(layout: &LovLayout) -> Option<&PlainLayout> {
    match layout {
        LovLayout::Plain(plain) => Some(plain),
        LovLayout::Composite(composite) => composite.components.last().map(|(_, p)| p),
        LovLayout::Foreign(..) => None,
    }
}

/// The value of the requested field; 0 for a foreign layout.
fn field(layout: &LovLayout, is_dir: bool, filter: &FieldFilter) -> String {
    let Some(plain) = plain(layout) else {
        return "0".to_owned();
    };
    if filter.stripe_count {
        signed(plain.stripe_count).to_string()
    } else if filter.stripe_size {
        plain.stripe_size.to_string()
    } else if is_dir {
        signed(plain.layout_gen).to_string()
    } else {
        first_ost(plain).to_string()
    }
}

fn text(layout: &LovLayout, is_dir: bool) -> String {
    match layout {
        LovLayout::Plain(plain) if is_dir => format!(
            "stripe_count:  {} stripe_size:   {} pattern:       {} stripe_offset: {}",
            signed(plain.stripe_count),
            plain.stripe_size,
            pattern(plain.pattern),
            signed(plain.layout_gen),
        ),
        LovLayout::Plain(plain) => objects(plain),
        LovLayout::Composite(composite) => {
            let head = format!("  lcm_layout_gen:    {}\n", composite.head.lcm_layout_gen);
            let parts = composite.components.iter().map(|(entry, plain)| {
                let extent = entry.lcme_extent;
                let end = if extent.e_end == u64::MAX {
                    "EOF".to_owned()
                } else {
                    extent.e_end.to_string()
                };
                format!(
                    "    lcme_extent.e_start: {}\n    lcme_extent.e_end:   {end}\n{}",
                    extent.e_start,
                    objects(plain)
                )
            });
            head + &parts.collect::<Vec<_>>().join("\n")
        }
        LovLayout::Foreign(..) => "  foreign layout".to_owned(),
    }
}

fn objects(plain: &PlainLayout) -> String {
    let mut out = format!(
        "lmm_stripe_count:  {}\nlmm_stripe_size:   {}\nlmm_pattern:       {}\nlmm_layout_gen:    {}\nlmm_stripe_offset: {}\n",
        plain.stripe_count,
        plain.stripe_size,
        pattern(plain.pattern),
        plain.layout_gen,
        first_ost(plain),
    );
    out += "\tobdidx\t\t objid\t\t objid\t\t group";
    for object in &plain.objects {
        let fid = object.l_ost_oi.fid();
        let hex = format!("{:#x}", fid.f_oid);
        out += &format!(
            "\n\t{:6}\t{:14}\t{hex:>14}\t{:#14x}",
            object.l_ost_idx, fid.f_oid, fid.f_seq
        );
    }
    out
}

fn first_ost(plain: &PlainLayout) -> i64 {
    plain.objects.first().map_or(-1, |o| o.l_ost_idx.into())
}

fn pattern(pattern: u32) -> String {
    if pattern == LOV_PATTERN_RAID0 {
        "raid0".to_owned()
    } else {
        format!("{pattern:#x}")
    }
}

/// The number for the output: -1 for [`ANY`].
fn signed(n: u16) -> i32 {
    if n == ANY { -1 } else { n.into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::{Fid, LovOstDataV1, OstId};

    #[test]
    fn layout_output_matches_lfs() {
        let object = |idx, seq, oid| LovOstDataV1 {
            l_ost_oi: OstId::from(Fid::new(seq, oid, 0)),
            l_ost_idx: idx,
            ..Default::default()
        };
        let objects = vec![object(0, 0x2_4000_0400, 0x3e4), object(1, 0x2_c000_0401, 0x3e5)];
        let layout = LovLayout::Plain(PlainLayout::raid0(Fid::new(1, 2, 0), 1 << 20, objects));
        let expected = "lmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
                        lmm_layout_gen:    0\nlmm_stripe_offset: 0\n\tobdidx\t\t objid\t\t objid\t\t group\n\
                        \t     0\t           996\t         0x3e4\t   0x240000400\n\
                        \t     1\t           997\t         0x3e5\t   0x2c0000401";
        assert_eq!(text(&layout, false), expected);
    }

    #[test]
    fn directories_show_the_fields_of_their_default_layout() {
        let filter = |field| FieldFilter {
            stripe_count: field == 'c',
            stripe_size: field == 'S',
            stripe_index: field == 'i',
        };
        let fields = |layout| ['c', 'S', 'i'].map(|f| field(&layout, true, &filter(f)));
        assert_eq!(fields(default_layout()), ["1", "4194304", "-1"]);
        let own = LovLayout::Plain(PlainLayout::request(65536, ANY, Some(3)));
        assert_eq!(fields(own), ["-1", "65536", "3"]);
    }

    #[test]
    fn stripe_size_must_be_a_multiple_of_64k_below_4g() {
        assert_eq!(parse_size("1M").unwrap(), 1 << 20);
        assert_eq!(parse_size("65536").unwrap(), 65536);
        for bad in ["100", "1T", "M", "4G", ""] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
