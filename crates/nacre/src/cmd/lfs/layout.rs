//! Layouts of files and default layouts of directories.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, getxattr, mknodat, setxattr};
use rustix::io::Errno;
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{LOV_USER_MAGIC_SPECIFIC, LovCompMdEntryV1, LovOstDataV1, LuExtent};

use super::foreign;
use crate::cli::{ComponentArgs, Setstripe};

/// The extended attribute to set a layout.
const SET_XATTR: &str = "lustre.lov";
/// The extended attribute to read a layout. Reading it causes no glimpse of the file's size.
const GET_XATTR: &str = "system.lustre.lov";
/// Maximum size of an extended attribute in Linux, in bytes.
pub(super) const XATTR_BYTES_MAX: usize = 65536;
/// Stripe sizes are multiples of this number of bytes.
const STRIPE_SIZE_UNIT: u64 = 64 << 10;
/// Maximum number of stripes of a file.
const STRIPES_MAX: i32 = 2000;
/// Number of OSTs that a 16-bit index can name.
const OST_INDEX_COUNT: usize = 1 << 16;
/// The least stripe count with overstriping: 32 stripes on each OST. -1 means one on each.
const OVERSTRIPE_COUNT_MIN: i32 = -32;
/// As a stripe count: all OSTs. As a stripe index: any OST.
pub(super) const ANY_OST: u16 = 0xffff;

/// The layout to set.
pub(super) struct LayoutRequest {
    /// The extended attribute.
    ea: Bytes,
    delete: bool,
    foreign: bool,
}

impl LayoutRequest {
    /// A request from the command line. Missing values mean the file system's default; a request
    /// without any value deletes the default layout of a directory.
    pub(super) fn new(args: &Setstripe) -> Result<LayoutRequest> {
        let (components, delete) = (&args.striping.0, args.delete);
        if delete && *components != [ComponentArgs::default()] {
            bail!("-d deletes the default layout and cannot be combined with other options");
        }
        let request = |ea, foreign| LayoutRequest { ea, delete, foreign };
        if let (Some(kind), Some(value)) = (&args.foreign, &args.xattr) {
            let ea = foreign::request(kind.as_deref(), args.flags.as_deref(), value)?;
            return Ok(request(ea, true));
        }
        if let Some(source) = &args.copy {
            return Ok(request(copy_request(source)?.build(), false));
        }
        let layout = match &components[..] {
            [whole] if whole.end.is_none() && whole.on_mdt => {
                bail!("-L mdt needs the end of the part on the MDT: put -E before it")
            }
            [whole] if whole.end.is_none() => LovLayout::Plain(striping(whole)?),
            components => composite(components)?,
        };
        Ok(request(layout.build(), false))
    }
}

/// A request for the striping of a component, or of the whole file.
fn striping(args: &ComponentArgs) -> Result<PlainLayout> {
    let overstripes = args.count.is_some_and(|c| c.overstripes);
    let stripe_count = match args.count.map(|c| c.count) {
        None => 0,
        Some(-1) => ANY_OST,
        Some(n @ OVERSTRIPE_COUNT_MIN..-1) if overstripes => n as u16,
        Some(n @ 0..=STRIPES_MAX) => n as u16,
        Some(n) if overstripes => bail!(
            "-C is from 1 to {STRIPES_MAX}, 0 for the default, or -1 to {OVERSTRIPE_COUNT_MIN} for 1 to 32 stripes on each OST, not {n}"
        ),
        Some(n) => {
            bail!("a stripe count is from 1 to {STRIPES_MAX}, 0 for the default, or -1 for all OSTs, not {n}")
        }
    };
    let first = match args.stripe_index {
        None | Some(-1) => None,
        Some(n @ 0..=0xfffe) => Some(n as u16),
        Some(n) => bail!("a stripe index is the index of an OST, or -1 for any, not {n}"),
    };
    let size = args.stripe_size.as_deref();
    let stripe_size = size.map(parse_size).transpose()?.unwrap_or(0);
    let layout = match &args.ost {
        Some(osts) => request_on_osts(stripe_size, stripe_count, &stripe_osts(osts)?)?,
        None => PlainLayout::request(stripe_size, stripe_count, first),
    };
    Ok(if overstripes { layout.overstriped() } else { layout })
}

/// A request for a layout with these components, each of which begins where the one before ends.
fn composite(args: &[ComponentArgs]) -> Result<LovLayout> {
    let mut components = Vec::with_capacity(args.len());
    let mut e_start = 0;
    for component in args {
        let text = component.end.as_deref().unwrap_or("-1");
        let e_end = parse_end(text)?;
        if e_start == CompositeLayout::EOF {
            bail!("-E {text} follows a component that has no end: leave it out");
        }
        if e_end <= e_start {
            bail!("-E {text} is not above the end of the component before it");
        }
        let plain = match component.on_mdt {
            true => on_mdt(component, e_start, e_end)?,
            false => striping(component)?,
        };
        let size = u64::from(plain.stripe_size);
        if e_end != CompositeLayout::EOF && size != 0 && !e_end.is_multiple_of(size) {
            bail!("-E {text} is not a multiple of the component's stripe size, {size} bytes: set another -S");
        }
        let entry = LovCompMdEntryV1 {
            lcme_extent: LuExtent { e_start, e_end },
            ..Default::default()
        };
        components.push((entry, plain));
        e_start = e_end;
    }
    Ok(LovLayout::Composite(CompositeLayout::new(components)))
}

/// A request for the component on the MDT.
fn on_mdt(args: &ComponentArgs, start: u64, end: u64) -> Result<PlainLayout> {
    let rest = ComponentArgs {
        end: None,
        on_mdt: false,
        ..args.clone()
    };
    if rest != ComponentArgs::default() {
        bail!("-L mdt has no stripes: leave out the component's -c, -C, -S, -i and -o");
    }
    let size = u32::try_from(end).ok().filter(|_| start == 0);
    let size = size.context("-L mdt is for the first component, with an end below 4G")?;
    Ok(PlainLayout::request_on_mdt(size))
}

/// Parses the end of a component: a number of bytes with or without a suffix, or -1 or `eof`.
fn parse_end(text: &str) -> Result<u64> {
    if text == "-1" || text.eq_ignore_ascii_case("eof") {
        return Ok(CompositeLayout::EOF);
    }
    let bytes = parse_bytes(text)?;
    match bytes {
        0 => bail!("a component ends above 0, not at {text}"),
        bytes if bytes % STRIPE_SIZE_UNIT != 0 => {
            bail!("the end of a component is a multiple of 64K, not {text}")
        }
        bytes => Ok(bytes),
    }
}

/// A request for the layout of a file, or of a directory's default: stripe counts and sizes, and
/// the extents of components.
fn copy_request(source: &Path) -> Result<LovLayout> {
    let here = source.display();
    let striping = |plain: &PlainLayout| {
        let request = PlainLayout::request(plain.stripe_size, plain.stripe_count, None);
        match plain.is_overstriped() {
            _ if plain.is_on_mdt() => PlainLayout::request_on_mdt(plain.stripe_size),
            true => request.overstriped(),
            false => request,
        }
    };
    match read(source)? {
        Some(LovLayout::Plain(plain)) => Ok(LovLayout::Plain(striping(&plain))),
        Some(LovLayout::Composite(composite)) => {
            let component = |(entry, plain): &(LovCompMdEntryV1, PlainLayout)| {
                let entry = LovCompMdEntryV1 {
                    lcme_extent: entry.lcme_extent,
                    ..Default::default()
                };
                (entry, striping(plain))
            };
            let components = composite.components.iter().map(component);
            Ok(LovLayout::Composite(CompositeLayout::new(components.collect())))
        }
        Some(LovLayout::Foreign(..)) => bail!("{here} has a foreign layout: set -c and -S instead"),
        None => bail!("{here} has no layout of its own to copy: set -c and -S instead"),
    }
}

/// Parses the OSTs of a file's stripes.
fn stripe_osts(text: &str) -> Result<Vec<u32>> {
    parse_osts(text, STRIPES_MAX as usize)
}

/// A request for one stripe on each of the OSTs, of which there are at most [`STRIPES_MAX`]. As in
/// Lustre's lfs, a repeated OST means overstriping.
fn request_on_osts(stripe_size: u32, stripe_count: u16, osts: &[u32]) -> Result<PlainLayout> {
    if stripe_count != 0 && usize::from(stripe_count) != osts.len() {
        bail!(
            "the stripe count {stripe_count} contradicts -o, which lists {} OSTs: leave -c or -C out",
            osts.len()
        );
    }
    let object = |ost: &u32| LovOstDataV1 {
        l_ost_idx: *ost,
        ..Default::default()
    };
    let first = osts.first().map(|ost| *ost as u16);
    let layout = PlainLayout {
        magic: LOV_USER_MAGIC_SPECIFIC,
        objects: osts.iter().map(object).collect(),
        ..PlainLayout::request(stripe_size, osts.len() as u16, first)
    };
    let distinct: BTreeSet<_> = osts.iter().collect();
    Ok(if distinct.len() < osts.len() {
        layout.overstriped()
    } else {
        layout
    })
}

/// Parses a stripe size: a number of bytes, with or without one of the suffixes K, M and G.
fn parse_size(text: &str) -> Result<u32> {
    let bytes = parse_bytes(text)?;
    if bytes % STRIPE_SIZE_UNIT != 0 {
        bail!("a stripe size is a multiple of 64K, not {text}");
    }
    u32::try_from(bytes).with_context(|| format!("a stripe size is less than 4G, not {text}"))
}

/// Parses a number of bytes, with or without one of the suffixes K, M, G, T and P.
fn parse_bytes(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        "p" => 1 << 50,
        other => bail!("'{other}' is not a unit: use K, M, G, T or P"),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.with_context(|| format!("'{text}' is not a size"))
}

/// Creates a file with the layout, or sets the default layout of a directory.
pub(super) fn set(path: &Path, request: &LayoutRequest) -> Result<()> {
    let here = path.display();
    let is_dir = path.is_dir();
    if request.delete && !is_dir {
        bail!("{here}: only a directory's default layout can be deleted");
    }
    if request.foreign && is_dir {
        bail!("{here}: a directory cannot have a foreign layout");
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
    let result = setxattr(path, SET_XATTR, &request.ea, XattrFlags::empty());
    if result.is_err() && !is_dir {
        let _ = fs::remove_file(path);
    }
    match result {
        Err(Errno::OPNOTSUPP) => bail!("{here} is not on a mounted Nacre file system"),
        Err(Errno::INVAL) => {
            bail!(
                "{here}: the file system rejects this layout (does the OST exist? does each component end at a multiple of its stripe size? does lod.*.dom_stripesize allow a part on the MDT?)"
            )
        }
        result => result.with_context(|| format!("cannot set the layout of {here}")),
    }
}

/// The layout of a file, or the default of a directory; `None` if it has none of its own.
pub(super) fn read(path: &Path) -> Result<Option<LovLayout>> {
    let context = || path.display().to_string();
    let mut value = vec![0; XATTR_BYTES_MAX];
    match getxattr(path, GET_XATTR, &mut value) {
        Ok(len) => LovLayout::parse(&value[..len]).map(Some).with_context(context),
        Err(Errno::NODATA) => Ok(None),
        Err(Errno::OPNOTSUPP) => bail!("{} is not on a mounted Nacre file system", path.display()),
        Err(e) => Err(e).with_context(context),
    }
}

/// A plain layout itself, or the last component of a composite layout.
pub(super) fn plain(layout: &LovLayout) -> Option<&PlainLayout> {
    match layout {
        LovLayout::Plain(plain) => Some(plain),
        LovLayout::Composite(composite) => composite.components.last().map(|(_, p)| p),
        LovLayout::Foreign(..) => None,
    }
}

/// The index of an OST, from its index or name.
pub(super) fn ost_index(text: &str) -> Result<u32> {
    match ost_indices(text)?[..] {
        [index] => Ok(index),
        _ => bail!("'{text}' is more than one OST: name one"),
    }
}

/// Parses indices, ranges and names of OSTs, separated by commas: `0,2-3,testfs-OST0004_UUID`.
pub(super) fn ost_indices(text: &str) -> Result<Vec<u32>> {
    parse_osts(text, OST_INDEX_COUNT)
}

/// Like [`ost_indices`], for at most `max` OSTs.
fn parse_osts(text: &str, max: usize) -> Result<Vec<u32>> {
    let mut out: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let error_text =
            || format!("'{part}' is not an OST: use an index, a range 0-3, or a name such as testfs-OST0000");
        let (low, high) = if let Some((_, hex)) = part.split_once("-OST") {
            let index = u16::from_str_radix(hex.trim_end_matches("_UUID"), 16).ok();
            let index = index.with_context(error_text)?;
            (index, index)
        } else {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let parse = |n: &str| n.parse::<u16>().ok().with_context(error_text);
            (parse(low)?, parse(high)?)
        };
        if low > high {
            bail!("'{part}' is a range from high to low: write {high}-{low}, or the indices in your order");
        }
        // Checked before the list grows: a short text can list very many OSTs.
        if out.len() + usize::from(high - low) + 1 > max {
            bail!("the list has more than {max} OSTs, the maximum here: shorten it");
        }
        out.extend((low..=high).map(u32::from));
    }
    Ok(out)
}

/// The number for the output: -1 for [`ANY_OST`], to -32 for 32 stripes on each OST.
pub(super) fn signed(n: u16) -> i32 {
    match i32::from(n as i16) {
        negative @ OVERSTRIPE_COUNT_MIN..=-1 => negative,
        _ => n.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn osts_are_indices_ranges_and_names() {
        assert_eq!(ost_indices("0,2-3,fs-OST000a_UUID").unwrap(), [0, 2, 3, 10]);
        for bad in ["x", "70000", "", "3-", "fs-OSTx"] {
            assert!(ost_indices(bad).is_err(), "{bad}");
        }
        assert!(ost_index("0-1").is_err());
    }

    #[test]
    fn range_from_high_to_low_is_refused() {
        for text in ["1-0", "0,3-2", "65535-0"] {
            let error = ost_indices(text).unwrap_err().to_string();
            assert!(error.contains("from high to low"), "{error}");
        }
        assert_eq!(ost_indices("7-7").unwrap(), [7]);
    }

    #[test]
    fn number_of_osts_is_limited() {
        assert_eq!(stripe_osts("0-1999").unwrap().len(), 2000);
        for text in ["0-2000", "0-65535", "0-1999,5", "0-999,0-1000"] {
            let error = stripe_osts(text).unwrap_err().to_string();
            assert!(error.contains("more than 2000 OSTs"), "{text}: {error}");
        }
        assert_eq!(ost_indices("0-65535").unwrap().len(), 65536);
        assert!(ost_indices("0-65535,0-65535").is_err());
    }

    #[test]
    fn stripe_size_must_be_a_multiple_of_64k_below_4g() {
        assert_eq!(parse_size("1M").unwrap(), 1 << 20);
        assert_eq!(parse_size("65536").unwrap(), 65536);
        for bad in ["100", "1T", "M", "4G", "1X", ""] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
    fn component(end: &str, stripe_size: Option<&str>) -> ComponentArgs {
        ComponentArgs {
            end: Some(end.into()),
            stripe_size: stripe_size.map(Into::into),
            ..ComponentArgs::default()
        }
    }

    #[test]
    fn components_follow_each_other() {
        let args = [
            component("1M", None),
            component("64M", Some("2M")),
            component("-1", None),
        ];
        let LovLayout::Composite(layout) = composite(&args).unwrap() else {
            panic!("no composite layout");
        };
        let extents = layout
            .components
            .iter()
            .map(|(e, _)| (e.lcme_extent.e_start, e.lcme_extent.e_end));
        let mib = 1 << 20;
        assert!(extents.eq([(0, mib), (mib, 64 * mib), (64 * mib, u64::MAX)]));
        composite(&[component("1T", None)]).unwrap();
    }

    #[test]
    fn first_component_may_be_on_the_mdt() {
        let on_mdt = |end| ComponentArgs {
            on_mdt: true,
            ..component(end, None)
        };
        let LovLayout::Composite(layout) = composite(&[on_mdt("1M"), component("-1", None)]).unwrap() else {
            panic!("no composite layout");
        };
        let (entry, first) = &layout.components[0];
        assert!(first.is_on_mdt() && !layout.components[1].1.is_on_mdt());
        assert_eq!((entry.lcme_extent.e_end, first.stripe_size), (1 << 20, 1 << 20));
        let sized = ComponentArgs {
            stripe_size: Some("1M".into()),
            ..on_mdt("1M")
        };
        for (args, reason) in [
            (vec![on_mdt("-1")], "with an end"),
            (vec![component("1M", None), on_mdt("2M")], "first component"),
            (vec![sized], "no stripes"),
        ] {
            let error = composite(&args).unwrap_err().to_string();
            assert!(error.contains(reason), "{args:?}: {error}");
        }
    }

    #[test]
    fn ends_of_components_ascend_and_are_multiples_of_the_stripe_size() {
        for (ends, size, reason) in [
            (&["100"][..], None, "multiple of 64K"),
            (&["0"], None, "above 0"),
            (&["2M", "1M"], None, "not above"),
            (&["1M", "1M"], None, "not above"),
            (&["-1", "1M"], None, "no end"),
            (&["eof", "-1"], None, "no end"),
            (&["3M"], Some("2M"), "stripe size"),
            (&["x"], None, "not a unit"),
            (&["-2"], None, "not a size"),
        ] {
            let args: Vec<_> = ends.iter().map(|end| component(end, size)).collect();
            let error = composite(&args).unwrap_err().to_string();
            assert!(error.contains(reason), "{ends:?}: {error}");
        }
    }
}
