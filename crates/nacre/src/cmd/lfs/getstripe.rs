//! `lfs getstripe`: layouts of files and default layouts of directories, in Lustre's format.
//!
//! A single selected field is printed without its name, several fields with their names. The values
//! of a composite layout are the values of its last component with objects, or of the components
//! that a filter selects. A plain layout shows the values of a single component, but the component
//! count 0. After an error, the command reports the path and continues; it fails at the end.

mod filter;
mod text;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use wire::striping::{LovLayout, PlainLayout};

use super::layout;
use crate::cli::Getstripe;
use crate::cmd::walk;
use crate::output::{write, write_bytes};
use filter::Filter;
use text::{Field, InodeLines, View};

/// The types of files that are shown below the path of the command line.
const SHOWN: [FileType; 2] = [FileType::Directory, FileType::RegularFile];

/// Runs the command.
pub(super) fn run(args: &Getstripe) -> Result<ExitCode> {
    let view = view(args)?;
    let max_depth = match () {
        () if args.recursive => usize::MAX,
        () if args.directory || args.default || !view.selected.is_empty() => 0,
        () => 1,
    };
    let mut errors = 0;
    for path in &args.paths {
        // The slash makes the system follow a link to a directory.
        let is = |follows, kind| kind_of(path, follows).is_ok_and(|k| k == kind);
        let follows = !args.no_follow && is(false, FileType::Symlink) && is(true, FileType::Directory);
        let path = if follows { &path.join("") } else { path };
        errors += walk::walk("lfs getstripe", path, |path, depth| {
            let follows = depth == 0 && !args.no_follow;
            let kind = kind_of(path, follows)?;
            if !SHOWN.contains(&kind) && depth > 0 {
                return Ok(false);
            }
            let is_dir = kind == FileType::Directory;
            show(path, kind, max_depth > 0, &view)?;
            Ok(is_dir && depth < max_depth)
        });
    }
    Ok(match errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The fields and form that the switches select.
fn view(args: &Getstripe) -> Result<View> {
    // With a value, the switch selects components.
    let is_field = |arg: &Option<Option<String>>| *arg == Some(None);
    let switches = [
        (args.fid, Field::Fid),
        (args.generation, Field::Generation),
        (args.mirror_count, Field::MirrorCount),
        (args.component_count, Field::ComponentCount),
        (is_field(&args.component_id), Field::ComponentId),
        (is_field(&args.component_flags), Field::ComponentFlags),
        (is_field(&args.component_start), Field::ComponentStart),
        (is_field(&args.component_end), Field::ComponentEnd),
        (args.stripe_count, Field::StripeCount),
        (args.stripe_size, Field::StripeSize),
        (args.layout, Field::Pattern),
        (args.stripe_index, Field::StripeOffset),
        (args.pool, Field::Pool),
        (args.extension_size, Field::ExtensionSize),
        (args.mdt_index, Field::MdtIndex),
    ];
    Ok(View {
        selected: switches.iter().filter(|(on, _)| *on).map(|(_, f)| *f).collect(),
        verbose: args.verbose,
        quiet: args.quiet,
        yaml: args.yaml,
        raw: args.raw,
        hex: args.hex_idx,
        ost: args.ost.as_deref().map(layout::ost_index).transpose()?,
        filter: Filter::new(args)?,
    })
}

/// Shows a file or directory, perhaps with its path.
fn show(path: &Path, kind: FileType, with_path: bool, view: &View) -> Result<()> {
    let is_dir = kind == FileType::Directory;
    // A link that is not followed has no layout.
    let layout = match kind {
        FileType::Symlink => None,
        _ => layout::read(path)?,
    };
    if let Some(body) = body(path, layout, is_dir, view)? {
        if with_path && !view.yaml {
            write_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
        }
        write(format_args!("{body}"));
    }
    Ok(())
}

/// The text below a path; `None` if no component passes the filter. If an OST is selected, also
/// `None` for a directory and for a file without an object on this OST.
fn body(path: &Path, layout: Option<LovLayout>, is_dir: bool, view: &View) -> Result<Option<String>> {
    let of_inode = |field: &Field| [Field::Fid, Field::MdtIndex].contains(field);
    let needs_no_layout = !view.selected.is_empty() && view.selected.iter().all(of_inode);
    let has_fid = layout
        .as_ref()
        .is_some_and(|l| !matches!(l, LovLayout::Foreign(..)));
    let layout = match layout {
        Some(layout) => layout,
        None if view.ost.is_some() => return Ok(None),
        None if is_dir || needs_no_layout => LovLayout::Plain(PlainLayout::request(0, 0, None)),
        None => return Ok(Some("has no stripe info\n\n".to_owned())),
    };
    if view
        .ost
        .is_some_and(|ost| is_dir || !text::has_object_on(&layout, ost))
    {
        return Ok(None);
    }
    let Some(layout) = view.filter.apply(layout, is_dir) else {
        return Ok(None);
    };
    // The layout of a file contains the file's FID. The default layout of a directory and a foreign
    // layout do not.
    let needs_fid = view.selected.contains(&Field::Fid) && (is_dir || !has_fid);
    let needs_mdt = view.selected.contains(&Field::MdtIndex);
    let inode = match needs_fid || needs_mdt {
        true => {
            let ids = super::ids_of(path)?;
            InodeLines {
                fid: needs_fid.then_some(ids.fid),
                mdt: needs_mdt.then_some(ids.mdt),
            }
        }
        false => InodeLines::default(),
    };
    Ok(Some(text::layout_text(&layout, is_dir, &inode, view)))
}

/// The type of a file; does not cause a glimpse of the size.
fn kind_of(path: &Path, follows: bool) -> Result<FileType> {
    let flags = match follows {
        true => AtFlags::STATX_DONT_SYNC,
        false => AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW,
    };
    let stat = statx(CWD, path, flags, StatxFlags::TYPE).with_context(|| walk::message_path(path))?;
    Ok(FileType::from_raw_mode(stat.stx_mode.into()))
}
