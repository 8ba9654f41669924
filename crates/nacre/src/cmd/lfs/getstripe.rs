//! `lfs getstripe`: layouts of files and default layouts of directories, in Lustre's format.
//!
//! A selected field is printed without its name, several with their names. For these, the last
//! component with objects represents a composite layout, and a plain layout counts as one
//! component.

mod text;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use wire::striping::{LovLayout, PlainLayout};

use super::layout;
use crate::cli::Getstripe;
use crate::output::{outln, write};
use text::{Field, View};

/// Runs the command.
pub(super) fn run(args: &Getstripe) -> Result<()> {
    let view = view(args)?;
    let depth = match () {
        () if args.recursive => usize::MAX,
        () if args.directory || args.default || !view.selected.is_empty() => 0,
        () => 1,
    };
    args.paths
        .iter()
        .try_for_each(|path| show(path, depth, depth, &view))
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

/// Shows a file, or a directory and the entries down to a depth. `top` is the depth of the first
/// directory: paths are printed unless it is 0.
fn show(path: &Path, depth: usize, top: usize, view: &View) -> Result<()> {
    let kind = kind_of(path)?;
    let is_dir = kind == FileType::Directory;
    if !is_dir && kind != FileType::RegularFile && depth != top {
        return Ok(());
    }
    let layout = layout::read(path)?;
    if let Some(body) = body(path, layout, is_dir, view)? {
        if top > 0 && !view.yaml {
            outln!("{}", path.display());
        }
        write(format_args!("{body}"));
    }
    if !is_dir || depth == 0 {
        return Ok(());
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut entries: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    entries.sort();
    entries
        .iter()
        .try_for_each(|entry| show(entry, depth - 1, top, view))
}

/// The text below a path; `None` if the selected OST has no object of the file.
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
    Ok(Some(text::layout(&layout, is_dir, fid, view)))
}

/// The type of a file; does not follow symbolic links and does not cause a glimpse of the size.
fn kind_of(path: &Path) -> Result<FileType> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::TYPE).with_context(|| path.display().to_string())?;
    Ok(FileType::from_raw_mode(stat.stx_mode.into()))
}
