//! `lfs getdirstripe`: layouts of directories, in Lustre's format.
//!
//! A single selected field is printed without its name. After an error, the command reports the
//! path and continues; it fails at the end.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rustix::fs::getxattr;
use rustix::io::Errno;
use wire::dir_hash::HASH_NAMES;
use wire::{
    LMV_HASH_FLAG_BAD_TYPE, LMV_HASH_FLAG_FIXED, LMV_HASH_FLAG_KNOWN, LMV_HASH_FLAG_LOST_LMV,
    LMV_HASH_FLAG_MIGRATION, LMV_HASH_FLAG_OVERSTRIPED, LMV_HASH_TYPE_MASK, LMV_HASH_TYPE_UNKNOWN,
    LMV_INHERIT_NONE, LMV_INHERIT_RR_NONE, LMV_INHERIT_RR_UNLIMITED, LMV_INHERIT_UNLIMITED,
    LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1, LmvUserMdsData, WireStruct,
};

use super::setdirstripe::DEFAULT_XATTR;
use super::{fid_of, relative_to_mount};
use crate::cli::Getdirstripe;
use crate::cmd::walk;
use crate::output::{write, write_bytes};
use crate::process;

/// The extended attribute with a directory's layout.
const LAYOUT_XATTR: &str = "lustre.lmv";
/// Largest size of a layout, in bytes: 2000 stripes.
const LAYOUT_BYTES_MAX: usize = 64 << 10;

/// Runs the command.
pub(super) fn run(args: &Getdirstripe) -> Result<ExitCode> {
    let fields = fields(args);
    let max_depth = if args.recursive { usize::MAX } else { 0 };
    let mut errors = 0;
    for path in &args.paths {
        errors += walk::walk("lfs getdirstripe", path, |path, depth| {
            // Below the path of the command line, only directories are shown.
            let is_dir = match depth {
                0 => path.is_dir(),
                _ => std::fs::symlink_metadata(path)
                    .with_context(|| walk::message_path(path))?
                    .is_dir(),
            };
            if !is_dir {
                return match depth {
                    0 => bail!("{} is not a directory", walk::message_path(path)),
                    _ => Ok(false),
                };
            }
            show(path, args, &fields)?;
            Ok(depth < max_depth)
        });
    }
    Ok(match errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// A field of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Fid,
    Magic,
    Count,
    Offset,
    Hash,
    Inherit,
    InheritRr,
    Stripes,
}

/// The selected fields, in the order of the output; without a switch the usual ones.
fn fields(args: &Getdirstripe) -> Vec<Field> {
    let switches = [
        (args.fid || args.verbose, Field::Fid),
        (args.verbose, Field::Magic),
        (args.mdt_count, Field::Count),
        (args.mdt_index, Field::Offset),
        (args.mdt_hash, Field::Hash),
        (args.max_inherit, Field::Inherit),
        (args.max_inherit_rr, Field::InheritRr),
    ];
    let selected = switches.iter().filter(|(on, _)| *on).map(|(_, field)| *field);
    let mut selected: Vec<Field> = selected.collect();
    if selected.is_empty() || args.verbose {
        for usual in [
            Field::Count,
            Field::Offset,
            Field::Hash,
            Field::Inherit,
            Field::InheritRr,
            Field::Stripes,
        ] {
            if !selected.contains(&usual) {
                selected.push(usual);
            }
        }
    }
    selected
}

/// A layout as the mount returns it: the header and the stripes.
struct Layout {
    head: LmvUserMdV1,
    stripes: Vec<LmvUserMdsData>,
}

fn show(path: &Path, args: &Getdirstripe, fields: &[Field]) -> Result<()> {
    let layout = match args.default {
        true => default_layout(path, args.raw)?,
        false => read(path, LAYOUT_XATTR)?,
    };
    let Some(layout) = layout else { return Ok(()) };
    let needs_fid = fields.contains(&Field::Fid)
        || (args.yaml && fields.contains(&Field::Stripes) && layout.head.lum_stripe_count == 0);
    let fid = match needs_fid {
        true => fid_of(path)?,
        false => String::new(),
    };
    if args.recursive {
        write_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
    }
    write(format_args!("{}", text(&layout, &fid, fields, args)));
    Ok(())
}

/// The default layout of a directory. Without one of its own, that of the file system's root, as
/// far as it reaches, and else the values "none"; with `raw` only the directory's own.
fn default_layout(path: &Path, raw: bool) -> Result<Option<Layout>> {
    if let Some(own) = read(path, DEFAULT_XATTR)? {
        return Ok(Some(own));
    }
    if raw {
        return Ok(None);
    }
    let none = Layout {
        head: LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_offset: LMV_OFFSET_DEFAULT,
            ..LmvUserMdV1::default()
        },
        stripes: Vec::new(),
    };
    let (_, mount) = process::by_path(path)?;
    let depth = relative_to_mount(path, &mount)?.components().count();
    let root = match depth {
        0 => None,
        _ => read(&mount.mountpoint, DEFAULT_XATTR)?,
    };
    Ok(Some(root.and_then(|root| at_depth(root, depth)).unwrap_or(none)))
}

/// The root's default layout for directories this far below it.
fn at_depth(root: Layout, depth: usize) -> Option<Layout> {
    let left = |levels: u8, unlimited: u32| match u32::from(levels) {
        all if all == unlimited => Some(levels),
        levels => u8::try_from((levels as usize).checked_sub(depth)?)
            .ok()
            .filter(|left| *left > 0),
    };
    let is_none = u32::from(root.head.lum_max_inherit) == LMV_INHERIT_NONE;
    let lum_max_inherit = left(root.head.lum_max_inherit, LMV_INHERIT_UNLIMITED).filter(|_| !is_none)?;
    let in_turn = left(root.head.lum_max_inherit_rr, LMV_INHERIT_RR_UNLIMITED);
    Some(Layout {
        head: LmvUserMdV1 {
            lum_max_inherit,
            lum_max_inherit_rr: in_turn.unwrap_or(LMV_INHERIT_RR_NONE as u8),
            ..root.head
        },
        ..root
    })
}

/// Reads a layout; `None`: the directory has none.
fn read(path: &Path, name: &str) -> Result<Option<Layout>> {
    let here = || walk::message_path(path);
    let mut value = vec![0; LAYOUT_BYTES_MAX];
    let len = match getxattr(path, name, &mut value) {
        Ok(len) => len,
        Err(Errno::NODATA) => return Ok(None),
        Err(Errno::OPNOTSUPP) => bail!("{} is not on a mounted Nacre file system", here()),
        Err(e) => return Err(e).with_context(here),
    };
    let (head, rest) = value[..len]
        .split_at_checked(LmvUserMdV1::SIZE)
        .with_context(|| format!("{}: the mount returned {len} bytes for a layout", here()))?;
    let stripes = rest.as_chunks::<{ LmvUserMdsData::SIZE }>().0;
    Ok(Some(Layout {
        head: LmvUserMdV1::from_bytes(head)?,
        stripes: stripes
            .iter()
            .map(|stripe| LmvUserMdsData::from_bytes(stripe))
            .collect::<wire::codec::Result<_>>()?,
    }))
}

/// The name of a hash type with its flags.
fn hash_text(hash: u32) -> String {
    let kind = hash & LMV_HASH_TYPE_MASK;
    let name = match kind {
        LMV_HASH_TYPE_UNKNOWN => "none".to_owned(),
        kind => HASH_NAMES
            .iter()
            .find(|(known, _)| *known == kind)
            .map_or_else(|| format!("{kind:#x}"), |(_, name)| (*name).to_owned()),
    };
    let flags = [
        (LMV_HASH_FLAG_OVERSTRIPED, "overstriped"),
        (LMV_HASH_FLAG_MIGRATION, "migrating"),
        (LMV_HASH_FLAG_BAD_TYPE, "bad_type"),
        (LMV_HASH_FLAG_LOST_LMV, "lost_lmv"),
        (LMV_HASH_FLAG_FIXED, "fixed"),
    ];
    let set = flags.iter().filter(|(flag, _)| hash & flag != 0);
    let mut text = set.fold(name, |text, (_, flag)| text + "," + flag);
    let unknown = hash & !LMV_HASH_TYPE_MASK & !LMV_HASH_FLAG_KNOWN;
    if unknown != 0 {
        text += &format!(",unknown_{unknown:04x}");
    }
    text
}

/// The text of a layout with these fields.
fn text(layout: &Layout, fid: &str, fields: &[Field], args: &Getdirstripe) -> String {
    let head = &layout.head;
    let is_default = head.lum_magic == LMV_USER_MAGIC;
    let index = |n: u32| match args.hex_idx {
        true => format!("{n:#x}"),
        false => (n as i32).to_string(),
    };
    let levels = |n: u8, unlimited: u32, none: u32| match u32::from(n) {
        n if n == unlimited => "-1".to_owned(),
        n if n == none => "0".to_owned(),
        n => n.to_string(),
    };
    let inherit = levels(head.lum_max_inherit, LMV_INHERIT_UNLIMITED, LMV_INHERIT_NONE);
    let in_turn = levels(
        head.lum_max_inherit_rr,
        LMV_INHERIT_RR_UNLIMITED,
        LMV_INHERIT_RR_NONE,
    );
    let values = [
        (
            Field::Fid,
            "lmv_fid:           ",
            fid.trim_matches(['[', ']']).to_owned(),
        ),
        (
            Field::Magic,
            "lmv_magic:         ",
            format!("{:#x}", head.lum_magic),
        ),
        (
            Field::Count,
            "lmv_stripe_count:  ",
            head.lum_stripe_count.to_string(),
        ),
        (
            Field::Offset,
            "lmv_stripe_offset: ",
            index(head.lum_stripe_offset),
        ),
        (Field::Hash, "lmv_hash_type:     ", hash_text(head.lum_hash_type)),
        (Field::Inherit, "lmv_max_inherit:   ", inherit),
        (Field::InheritRr, "lmv_max_inherit_rr: ", in_turn),
    ];
    let of_default = |field: &Field| matches!(field, Field::Inherit | Field::InheritRr);
    let shown = values
        .iter()
        .filter(|(field, ..)| fields.contains(field) && (is_default || !of_default(field)));
    let parts: Vec<String> = shown
        .map(|(_, name, value)| match (fields.len(), args.yaml) {
            (1, _) => value.clone(),
            (_, true) => format!("{name}{value}"),
            (_, false) => format!("{} {value}", name.trim_end()),
        })
        .collect();
    let mut out = parts.join(if args.yaml { "\n" } else { " " });
    out.push('\n');
    if is_default || !fields.contains(&Field::Stripes) {
        return out;
    }
    if args.yaml {
        out += "lmv_objects:\n";
        let of_itself = (head.lum_stripe_count == 0).then(|| (head.lum_stripe_offset, fid.to_owned()));
        let stripes = layout.stripes.iter().map(|s| (s.lum_mds, s.lum_fid.to_string()));
        for (mdt, fid) in of_itself.into_iter().chain(stripes) {
            let fid = fid.trim_matches(['[', ']']);
            out += &format!("      - l_mdt_idx: {}\n        l_fid:     {fid}\n\n", index(mdt));
        }
        return out;
    }
    if !layout.stripes.is_empty() {
        out += "mdtidx\t\t FID[seq:oid:ver]\n";
    }
    for stripe in &layout.stripes {
        let mdt = match args.hex_idx {
            true => format!("{:#6x}", stripe.lum_mds),
            false => format!("{:6}", stripe.lum_mds),
        };
        out += &format!("{mdt}\t\t {}\t\t\n", stripe.lum_fid);
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;
    use wire::{Fid, LMV_HASH_TYPE_FNV_1A_64, LMV_MAGIC_V1};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Getdirstripe,
    }

    fn print(layout: &Layout, options: &str) -> String {
        let words = ["getdirstripe"]
            .into_iter()
            .chain(options.split_whitespace())
            .chain(["/d"]);
        let args = Command::try_parse_from(words).unwrap().args;
        text(layout, "[0x200000402:0x7e3:0x0]", &fields(&args), &args)
    }

    fn plain(mdt: u32) -> Layout {
        Layout {
            head: LmvUserMdV1 {
                lum_magic: LMV_MAGIC_V1,
                lum_stripe_offset: mdt,
                ..LmvUserMdV1::default()
            },
            stripes: Vec::new(),
        }
    }

    fn striped() -> Layout {
        let stripe = |(lum_mds, lum_fid)| LmvUserMdsData {
            lum_fid,
            lum_mds,
            ..LmvUserMdsData::default()
        };
        Layout {
            head: LmvUserMdV1 {
                lum_magic: LMV_MAGIC_V1,
                lum_stripe_count: 2,
                lum_hash_type: LMV_HASH_TYPE_FNV_1A_64,
                ..LmvUserMdV1::default()
            },
            stripes: [
                (0, Fid::new(0x2_0000_0400, 4, 0)),
                (1, Fid::new(0x2_8000_0401, 4, 0)),
            ]
            .map(stripe)
            .to_vec(),
        }
    }

    #[test]
    fn text_matches_lfs() {
        // The output in the captures m1_remote_dir and m2_striped_dir.
        assert_eq!(
            print(&plain(1), ""),
            "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n"
        );
        assert_eq!(
            print(&striped(), ""),
            "lmv_stripe_count: 2 lmv_stripe_offset: 0 lmv_hash_type: fnv_1a_64\n\
             mdtidx\t\t FID[seq:oid:ver]\n     \
             0\t\t [0x200000400:0x4:0x0]\t\t\n     \
             1\t\t [0x280000401:0x4:0x0]\t\t\n"
        );
        assert_eq!(print(&striped(), "-c"), "2\n");
        assert_eq!(print(&striped(), "-H"), "fnv_1a_64\n");
        assert_eq!(print(&plain(3), "-m"), "3\n");
        assert_eq!(print(&plain(3), "-F"), "0x200000402:0x7e3:0x0\n");
    }

    #[test]
    fn a_default_layout_shows_its_levels() {
        let root = || Layout {
            head: LmvUserMdV1 {
                lum_magic: LMV_USER_MAGIC,
                lum_stripe_count: 1,
                lum_stripe_offset: LMV_OFFSET_DEFAULT,
                lum_max_inherit_rr: 3,
                ..LmvUserMdV1::default()
            },
            stripes: Vec::new(),
        };
        assert_eq!(
            print(&root(), "-D"),
            "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 3\n"
        );
        let below =
            |depth| at_depth(root(), depth).map(|l| (l.head.lum_max_inherit, l.head.lum_max_inherit_rr));
        assert_eq!((below(1), below(3)), (Some((0, 2)), Some((0, 0))));
        let mut limited = root();
        limited.head.lum_max_inherit = 2;
        assert!(at_depth(limited, 2).is_none());
        assert!(print(&root(), "-D -y").contains("lmv_max_inherit:   -1\n"));
    }

    #[test]
    fn flags_follow_the_hash_type() {
        assert_eq!(hash_text(0x2000_0004), "crush2,bad_type");
        assert_eq!(hash_text(LMV_HASH_FLAG_MIGRATION | 3), "crush,migrating");
        assert_eq!(hash_text(0x9), "0x9");
    }
}
