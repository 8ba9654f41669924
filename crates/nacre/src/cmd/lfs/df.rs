//! `lfs df`: the space of every target of a mount.

use anyhow::Result;
use serde::Deserialize;

use super::{ask, mounts_at};
use crate::cli::Df;
use crate::control::Request;
use crate::output::outln;

/// Space of one target, in the answer of the process of the mount.
#[derive(Deserialize)]
struct Target {
    uuid: String,
    kind: String,
    index: u32,
    /// `None` if the target does not answer.
    space: Option<Space>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct Space {
    total_kib: u64,
    used_kib: u64,
    free_kib: u64,
    inodes: u64,
    inodes_free: u64,
}

/// Total, used and available amounts, in KiB or inodes.
type Row = (u64, u64, u64);

/// Prints the table of the mount at or above the path, or the tables of all mounts.
pub(super) fn run(args: &Df) -> Result<()> {
    for (record, mount) in mounts_at(args.path.as_deref())? {
        let request = Request::Df {
            mountpoint: mount.mountpoint.clone(),
        };
        let targets: Vec<Target> = ask(&record, &request)?;
        let mountpoint = mount.mountpoint.display().to_string();
        // The table ends with an empty line.
        outln!(
            "{}",
            table(&mountpoint, &targets, args.inodes, args.human)
                .trim_end_matches('\n')
                .to_owned()
                + "\n"
        );
    }
    Ok(())
}

fn table(mountpoint: &str, targets: &[Target], inodes: bool, human: bool) -> String {
    let head = match (inodes, human) {
        (true, _) => ["Inodes", "IUsed", "IFree", "IUse%"],
        (_, true) => ["bytes", "Used", "Available", "Use%"],
        _ => ["1K-blocks", "Used", "Available", "Use%"],
    };
    let line = |name: &str, cells: [&str; 4], mounted_on: &str| {
        let [total, used, free, percent] = cells;
        format!("{name:<20} {total:>11} {used:>11} {free:>11} {percent:>4} {mounted_on}\n")
    };
    let mut out = line("UUID", head, " Mounted on");
    let mut sum_of_osts: Row = (0, 0, 0);
    let mut sum_of_mdts: Row = (0, 0, 0);
    for target in targets {
        let mounted_on = format!(" {mountpoint}[{}:{}] ", target.kind, target.index);
        let Some(space) = target.space else {
            out += &format!("{:<20}: inactive device\n", target.uuid);
            continue;
        };
        let row = row(&space, inodes);
        let sum = if target.kind == "MDT" {
            &mut sum_of_mdts
        } else {
            &mut sum_of_osts
        };
        *sum = (
            sum.0.saturating_add(row.0),
            sum.1.saturating_add(row.1),
            sum.2.saturating_add(row.2),
        );
        let cells = cells(row, inodes, human);
        out += &line(
            &target.uuid,
            [&cells[0], &cells[1], &cells[2], &cells[3]],
            &mounted_on,
        );
    }
    // The summary has the space of the OSTs, which store the data, or the inodes of the MDTs.
    let summary = if inodes { sum_of_mdts } else { sum_of_osts };
    let cells = cells(summary, inodes, human);
    out.push('\n');
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

fn cells((total, used, free): Row, inodes: bool, human: bool) -> [String; 4] {
    let format_amount = |n: u64| match (human, inodes) {
        (false, _) => n.to_string(),
        (true, true) if n < 1024 => n.to_string(),
        (true, true) => with_unit(n as f64 / 1024.0),
        (true, false) => with_unit(n as f64),
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

/// Formats KiB, or units of 1024 inodes, with a unit and one decimal digit.
fn with_unit(mut n: f64) -> String {
    for unit in ["K", "M", "G", "T", "P"] {
        if n < 1024.0 {
            return format!("{n:.1}{unit}");
        }
        n /= 1024.0;
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
        };
        let targets = [
            target("MDT", 0, (585656, 2088, 516364)),
            target("OST", 0, (954304, 6316, 879176)),
        ];
        let expected = "\
UUID                   1K-blocks        Used   Available Use%  Mounted on
testfs-MDT0000_UUID       585656        2088      516364   1%  /mnt/testfs[MDT:0] 
testfs-OST0000_UUID       954304        6316      879176   1%  /mnt/testfs[OST:0] 

filesystem_summary:       954304        6316      879176   1%  /mnt/testfs 

";
        assert_eq!(table("/mnt/testfs", &targets, false, false), expected);
    }

    #[test]
    fn largest_numbers_of_a_target_do_not_overflow() {
        assert_eq!(cells((1, u64::MAX, u64::MAX), false, false)[3], "50%");
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
        };
        let text = table("/mnt", &[target(0), target(1)], false, false);
        assert_eq!(text.matches("50%").count(), 3, "{text}");
    }

    #[test]
    fn sizes_are_shown_with_one_digit_after_the_point() {
        assert_eq!(cells((585656, 1, 0), false, true)[..2], ["571.9M", "1.0K"]);
        assert_eq!(cells((419432, 315, 0), true, true)[..2], ["409.6K", "315"]);
    }
}
