//! `lfs df`: the space of every target of a mount.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ask, mounts_at};
use crate::cli::Df;
use crate::control::Request;
use crate::output::outln;

/// Space of one target, in the answer of the process of the mount.
#[derive(Deserialize, Serialize)]
pub(crate) struct Target {
    pub(crate) uuid: String,
    kind: String,
    index: u32,
    /// `None` if the target does not answer.
    pub(crate) space: Option<Space>,
    /// Lustre's letters for the states of the target that keep new files away.
    #[serde(default)]
    state: String,
}

/// The space of a target; 0 inodes: the target does not count them.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
pub(crate) struct Space {
    pub(crate) total_kib: u64,
    used_kib: u64,
    pub(crate) free_kib: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

/// Total, used and available amounts, in KiB or inodes.
type Row = (u64, u64, u64);

/// The targets and the form of the table.
#[derive(Clone, Copy, Default)]
struct View {
    inodes: bool,
    unit: Unit,
    mdts: Selection,
    osts: Selection,
    only_summary: bool,
    no_header: bool,
}

/// The unit of space. `Binary` and `Decimal` also shorten numbers of inodes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Unit {
    #[default]
    Kib,
    /// The largest power of 1024 below the number.
    Binary,
    /// The largest power of 1000 below the number.
    Decimal,
}

/// Which targets of a kind the table has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Selection {
    #[default]
    All,
    One(u32),
    None,
}

impl Selection {
    fn contains(self, index: u32) -> bool {
        match self {
            Selection::All => true,
            Selection::One(one) => one == index,
            Selection::None => false,
        }
    }
}

impl View {
    /// Whether a target is selected.
    fn shows(&self, target: &Target) -> bool {
        let selection = match target.kind == "MDT" {
            true => self.mdts,
            false => self.osts,
        };
        selection.contains(target.index)
    }
}

/// Prints the table of the mount at or above the path, or the tables of all mounts.
pub(super) fn run(args: &Df) -> Result<()> {
    let (view, path) = view(args)?;
    let mut answers = Vec::new();
    for (record, mount) in mounts_at(path.as_deref())? {
        let request = Request::Df {
            mountpoint: mount.mountpoint.clone(),
        };
        let mut targets: Vec<Target> = ask(&record, &request)?;
        if args.json {
            targets.retain(|target| view.shows(target));
            answers.push(json!({ "mountpoint": mount.mountpoint, "targets": targets }));
            continue;
        }
        let mountpoint = mount.mountpoint.display().to_string();
        // The table ends with an empty line.
        outln!("{}\n", table(&mountpoint, &targets, view).trim_end_matches('\n'));
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&answers)?);
    }
    Ok(())
}

/// The view and the path. As in Lustre's lfs, an index is attached to its option; so a separate
/// word after -m or -o that is not a number is the path.
fn view(args: &Df) -> Result<(View, Option<PathBuf>)> {
    let mut path = args.path.clone();
    let mut selection = |option: &Option<Option<String>>| match option {
        None => Ok(Selection::None),
        Some(None) => Ok(Selection::All),
        Some(Some(word)) => match word.parse() {
            Ok(index) => Ok(Selection::One(index)),
            Err(_) if path.is_none() => {
                path = Some(word.into());
                Ok(Selection::All)
            }
            Err(_) => bail!("'{word}' is not the index of a target"),
        },
    };
    let (mdts, osts) = match (&args.mdt, &args.ost) {
        (None, None) => (Selection::All, Selection::All),
        (mdt, ost) => (selection(mdt)?, selection(ost)?),
    };
    let view = View {
        inodes: args.inodes,
        unit: match () {
            () if args.si => Unit::Decimal,
            () if args.human => Unit::Binary,
            () => Unit::Kib,
        },
        mdts,
        osts,
        only_summary: args.only_summary,
        no_header: args.no_header,
    };
    Ok((view, path))
}

fn table(mountpoint: &str, targets: &[Target], view: View) -> String {
    let head = match (view.inodes, view.unit) {
        (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
        (_, Unit::Kib) => ["1K-blocks", "Used", "Available", "Use%"],
        _ => ["bytes", "Used", "Available", "Use%"],
    };
    let line = |name: &str, cells: [&str; 4], mounted_on: &str| {
        let [total, used, free, percent] = cells;
        format!("{name:<20} {total:>11} {used:>11} {free:>11} {percent:>4} {mounted_on}\n")
    };
    let mut out = match view.no_header {
        true => String::new(),
        false => line("UUID", head, " Mounted on"),
    };
    let mut sum_of_osts: Row = (0, 0, 0);
    let mut sum_of_mdts: Row = (0, 0, 0);
    for target in targets {
        let is_mdt = target.kind == "MDT";
        let sum = match is_mdt {
            true => &mut sum_of_mdts,
            false => &mut sum_of_osts,
        };
        if !view.shows(target) {
            continue;
        }
        let mounted_on = format!(" {mountpoint}[{}:{}] {}", target.kind, target.index, target.state);
        let Some(space) = target.space else {
            if !view.only_summary {
                out += &format!("{:<20}: inactive device\n", target.uuid);
            }
            continue;
        };
        let row = row(&space, view.inodes);
        *sum = (
            sum.0.saturating_add(row.0),
            sum.1.saturating_add(row.1),
            sum.2.saturating_add(row.2),
        );
        let cells = cells(row, view);
        if !view.only_summary {
            out += &line(
                &target.uuid,
                [&cells[0], &cells[1], &cells[2], &cells[3]],
                &mounted_on,
            );
        }
    }
    // The summary has the space of the OSTs, which store the data, or the inodes of the MDTs,
    // unless only targets of the other kind are shown.
    let of_mdts = match (view.mdts, view.osts) {
        (_, Selection::None) => true,
        (Selection::None, _) => false,
        _ => view.inodes,
    };
    let cells = cells(if of_mdts { sum_of_mdts } else { sum_of_osts }, view);
    if !view.only_summary {
        out.push('\n');
    }
    out += &line(
        "filesystem_summary:",
        [&cells[0], &cells[1], &cells[2], &cells[3]],
        &format!(" {mountpoint} "),
    );
    out.push('\n');
    out
}

fn row(space: &Space, inodes: bool) -> Row {
    if inodes {
        (
            space.inodes,
            space.inodes.saturating_sub(space.inodes_free),
            space.inodes_free,
        )
    } else {
        (space.total_kib, space.used_kib, space.free_kib)
    }
}

fn cells((total, used, free): Row, view: View) -> [String; 4] {
    let format_amount = |n: u64| match (view.unit, view.inodes) {
        (Unit::Kib, _) => n.to_string(),
        (Unit::Binary, false) => with_unit(n as f64, 1024.0),
        (Unit::Decimal, false) => with_unit(n as f64 * 1.024, 1000.0),
        (Unit::Binary, true) if n >= 1024 => with_unit(n as f64 / 1024.0, 1024.0),
        (Unit::Decimal, true) if n >= 1000 => with_unit(n as f64 / 1000.0, 1000.0),
        (_, true) => n.to_string(),
    };
    // Like df: used space as a percentage of used and available space, rounded up.
    let (wide_used, wide_free) = (u128::from(used), u128::from(free));
    let percent = (wide_used * 100).div_ceil((wide_used + wide_free).max(1));
    [
        format_amount(total),
        format_amount(used),
        format_amount(free),
        format!("{percent}%"),
    ]
}

/// Formats a number of the first unit, of `step` bytes or inodes, with the largest unit below it
/// and one decimal digit.
fn with_unit(mut n: f64, step: f64) -> String {
    for unit in ["K", "M", "G", "T", "P"] {
        if n < step {
            return format!("{n:.1}{unit}");
        }
        n /= step;
    }
    format!("{n:.1}E")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn df_table_matches_lfs() {
        let target = |kind: &str, index, (total_kib, used_kib, free_kib): Row| Target {
            uuid: format!("testfs-{kind}{index:04}_UUID"),
            kind: kind.to_owned(),
            index,
            space: Some(Space {
                total_kib,
                used_kib,
                free_kib,
                ..Space::default()
            }),
            state: String::new(),
        };
        let mut targets = [
            target("MDT", 0, (585656, 2088, 516364)),
            target("OST", 0, (954304, 6316, 879176)),
        ];
        let expected = "\
UUID                   1K-blocks        Used   Available Use%  Mounted on
testfs-MDT0000_UUID       585656        2088      516364   1%  /mnt/testfs[MDT:0] 
testfs-OST0000_UUID       954304        6316      879176   1%  /mnt/testfs[OST:0] 

filesystem_summary:       954304        6316      879176   1%  /mnt/testfs 

";
        assert_eq!(table("/mnt/testfs", &targets, View::default()), expected);
        let only = |mdts, osts, only_summary| View {
            mdts,
            osts,
            only_summary,
            no_header: true,
            ..View::default()
        };
        assert_eq!(
            table(
                "/mnt/testfs",
                &targets,
                only(Selection::One(0), Selection::None, false)
            ),
            "\
testfs-MDT0000_UUID       585656        2088      516364   1%  /mnt/testfs[MDT:0] 

filesystem_summary:       585656        2088      516364   1%  /mnt/testfs 

"
        );
        assert_eq!(
            table(
                "/mnt/testfs",
                &targets,
                only(Selection::All, Selection::All, true)
            ),
            "filesystem_summary:       954304        6316      879176   1%  /mnt/testfs \n\n"
        );
        targets[1].state = "RS".to_owned();
        let failed = table("/mnt/testfs", &targets, View::default());
        assert!(failed.contains("  /mnt/testfs[OST:0] RS\n"), "{failed}");
    }

    #[test]
    fn largest_numbers_of_a_target_do_not_overflow() {
        assert_eq!(cells((1, u64::MAX, u64::MAX), View::default())[3], "50%");
        let target = |index| Target {
            uuid: String::new(),
            kind: "OST".to_owned(),
            index,
            space: Some(Space {
                total_kib: u64::MAX,
                used_kib: u64::MAX,
                free_kib: u64::MAX,
                ..Space::default()
            }),
            state: String::new(),
        };
        let text = table("/mnt", &[target(0), target(1)], View::default());
        assert_eq!(text.matches("50%").count(), 3, "{text}");
    }

    #[test]
    fn sizes_are_shown_with_one_digit_after_the_point() {
        let cells_in = |row, unit, inodes| {
            let view = View {
                unit,
                inodes,
                ..View::default()
            };
            cells(row, view)
        };
        assert_eq!(
            cells_in((585656, 1, 0), Unit::Binary, false)[..2],
            ["571.9M", "1.0K"]
        );
        assert_eq!(
            cells_in((585656, 1, 0), Unit::Decimal, false)[..2],
            ["599.7M", "1.0K"]
        );
        assert_eq!(
            cells_in((419432, 315, 0), Unit::Binary, true)[..2],
            ["409.6K", "315"]
        );
        assert_eq!(
            cells_in((419432, 315, 0), Unit::Decimal, true)[..2],
            ["419.4K", "315"]
        );
    }
}
