//! `lfs getstripe`: layouts of files and default layouts of directories, in Lustre's format.
//!
//! A single selected field is printed without its name, several fields with their names. The values
//! of a composite layout are the values of its last component with objects. A plain layout has the
//! values of a single component, but the component count 0. After an error, the command reports the
//! path and continues; it fails at the end.

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
use text::{Field, View};

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
        errors += walk::walk("lfs getstripe", path, |path, depth| {
            let is_dir = show(path, depth, max_depth > 0, &view)?;
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
    let switches = [
        (args.fid, Field::Fid),
        (args.generation, Field::Generation),
        (args.mirror_count, Field::MirrorCount),
        (args.component_count, Field::ComponentCount),
        (args.component_id, Field::ComponentId),
        (args.component_flags, Field::ComponentFlags),
        (args.component_start, Field::ComponentStart),
        (args.component_end, Field::ComponentEnd),
        (args.stripe_count, Field::StripeCount),
        (args.stripe_size, Field::StripeSize),
        (args.layout, Field::Pattern),
        (args.stripe_index, Field::StripeOffset),
        (args.pool, Field::Pool),
    ];
    Ok(View {
        selected: switches.iter().filter(|(on, _)| *on).map(|(_, f)| *f).collect(),
        verbose: args.verbose,
        quiet: args.quiet,
        yaml: args.yaml,
        raw: args.raw,
        hex: args.hex_idx,
        ost: args.ost.as_deref().map(layout::ost_index).transpose()?,
    })
}

/// Shows a file or directory, perhaps with its path. Returns whether it is a directory. Below the
/// path of the command line, other types are left out.
fn show(path: &Path, depth: usize, with_path: bool, view: &View) -> Result<bool> {
    let kind = kind_of(path)?;
    let is_dir = kind == FileType::Directory;
    if !is_dir && kind != FileType::RegularFile && depth > 0 {
        return Ok(false);
    }
    let layout = layout::read(path)?;
    if let Some(body) = body(path, layout, is_dir, view)? {
        if with_path && !view.yaml {
            write_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
        }
        write(format_args!("{body}"));
    }
    Ok(is_dir)
}

/// The text below a path. `None` if an OST is selected, and the path is a directory or a file
/// without an object on this OST.
fn body(path: &Path, layout: Option<LovLayout>, is_dir: bool, view: &View) -> Result<Option<String>> {
    let layout = match layout {
        Some(layout) => layout,
        None if is_dir => LovLayout::Plain(PlainLayout::request(0, 0, None)),
        None if view.ost.is_some() => return Ok(None),
        None => return Ok(Some("has no stripe info\n\n".to_owned())),
    };
    if view
        .ost
        .is_some_and(|ost| is_dir || !text::has_object_on(&layout, ost))
    {
        return Ok(None);
    }
    // The layout of a directory does not have the directory's FID.
    let fid = match is_dir && view.selected.contains(&Field::Fid) {
        true => Some(super::fid_of(path)?),
        false => None,
    };
    Ok(Some(text::layout_text(&layout, is_dir, fid, view)))
}

/// The type of a file; does not follow symbolic links and does not cause a glimpse of the size.
fn kind_of(path: &Path) -> Result<FileType> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::TYPE).with_context(|| walk::message_path(path))?;
    Ok(FileType::from_raw_mode(stat.stx_mode.into()))
}
