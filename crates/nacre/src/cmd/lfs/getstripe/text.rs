//! The text of a layout, as Lustre's lfs prints it.

use mdt::layout::{DEFAULT_STRIPE_COUNT, DEFAULT_STRIPE_SIZE};
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{
    Fid, LCME_FL_EXTENSION, LCME_FL_INIT, LCME_FL_NOSYNC, LCME_FL_OFFLINE, LCME_FL_PREF_RD, LCME_FL_PREF_WR,
    LCME_FL_STALE, LOV_PATTERN_MDT, LOV_PATTERN_OVERSTRIPING, LOV_PATTERN_RAID0, LovCompMdEntryV1,
    LovForeignMd, SEL_UNIT_SIZE,
};

use super::super::foreign;
use super::super::layout::signed;
use super::filter::{Filter, mirror_id, whole_file};

/// The names of component flags.
pub(super) const FLAG_NAMES: [(u32, &str); 7] = [
    (LCME_FL_INIT, "init"),
    (LCME_FL_STALE, "stale"),
    (LCME_FL_PREF_RD, "prefrd"),
    (LCME_FL_PREF_WR, "prefwr"),
    (LCME_FL_OFFLINE, "offline"),
    (LCME_FL_NOSYNC, "nosync"),
    (LCME_FL_EXTENSION, "extension"),
];

/// The selected fields of layouts and the form of the output.
#[derive(Default)]
pub(super) struct View {
    /// The selected fields; all if empty.
    pub(super) selected: Vec<Field>,
    pub(super) verbose: bool,
    /// Only objects.
    pub(super) quiet: bool,
    pub(super) yaml: bool,
    /// Do not replace missing values of a directory by the defaults.
    pub(super) raw: bool,
    /// Show indices of OSTs in hexadecimal.
    pub(super) hex: bool,
    /// Only files and objects on this OST.
    pub(super) ost: Option<u32>,
    /// Only these components.
    pub(super) filter: Filter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Magic, sequence and object id: only with `verbose`.
    Detail,
    Fid,
    MirrorCount,
    MirrorId,
    ComponentCount,
    ComponentId,
    ComponentFlags,
    ComponentStart,
    ComponentEnd,
    ExtensionSize,
    StripeCount,
    StripeSize,
    Pattern,
    Generation,
    StripeOffset,
    Pool,
    MdtIndex,
}

/// Values that come from the inode, not from the layout.
#[derive(Default)]
pub(super) struct InodeLines {
    /// Replaces the FID in the layout.
    pub(super) fid: Option<String>,
    pub(super) mdt: Option<u32>,
}

/// A line of the output: field, name with padding, value.
type Line = (Field, &'static str, String);

/// Whether a component has an object on the OST.
pub(super) fn has_object_on(layout: &LovLayout, ost: u32) -> bool {
    let has_object = |plain: &PlainLayout| plain.objects.iter().any(|o| o.l_ost_idx == ost);
    match layout {
        LovLayout::Plain(plain) => has_object(plain),
        LovLayout::Composite(composite) => composite.components.iter().any(|(_, p)| has_object(p)),
        LovLayout::Foreign(..) => false,
    }
}

/// The text of a layout, from which the filter has removed components.
pub(super) fn layout_text(layout: &LovLayout, is_dir: bool, inode: &InodeLines, view: &View) -> String {
    if !view.selected.is_empty() {
        return selected_text(layout, is_dir, inode, view);
    }
    let end = if view.yaml { "" } else { "\n" };
    match layout {
        LovLayout::Plain(plain) if is_dir => dir_line(plain, view) + end,
        LovLayout::Plain(plain) => {
            let lines = lines_text(&plain_lines(plain, true, false, view), "", view);
            lines + &objects_text(plain, Nesting::Top, view) + end
        }
        LovLayout::Composite(composite) => composite_text(composite, is_dir, view),
        LovLayout::Foreign(head, value) => foreign::text(head, value, view.verbose),
    }
}

/// The selected fields of each component that passed the filter; without a filter, those of the
/// last component with objects.
fn selected_text(layout: &LovLayout, is_dir: bool, inode: &InodeLines, view: &View) -> String {
    let whole = whole_file(is_dir);
    // A composite layout has a generation of its own.
    let (composite, entries, generation_prefix) = match layout {
        LovLayout::Plain(plain) => (None, vec![(&whole, plain)], "lmm_"),
        LovLayout::Composite(composite) => {
            let mut entries: Vec<_> = composite.components.iter().map(|(e, plain)| (e, plain)).collect();
            if view.filter.is_empty() {
                let has_objects = |(entry, _): &(&LovCompMdEntryV1, _)| entry.lcme_flags & LCME_FL_INIT != 0;
                let last = entries
                    .iter()
                    .rposition(has_objects)
                    .or(entries.len().checked_sub(1));
                entries = last.map(|at| entries[at]).into_iter().collect();
            }
            (Some(composite), entries, "lcm_")
        }
        LovLayout::Foreign(head, value) => return foreign_fields(head, value, inode, view),
    };
    let shows_names = view.selected.len() > 1;
    let is_wanted = |field, name: &str| field != Field::Generation || name.starts_with(generation_prefix);
    let of_file = [
        Field::Generation,
        Field::MirrorCount,
        Field::ComponentCount,
        Field::MdtIndex,
    ];
    let mut out = String::new();
    for (number, (entry, plain)) in entries.into_iter().enumerate() {
        let mut lines = head_lines(composite);
        lines.extend(entry_lines(entry, plain));
        lines.extend(plain_lines(plain, true, is_dir, view));
        lines.extend(
            inode
                .mdt
                .map(|mdt| (Field::MdtIndex, "mdt_index:         ", mdt.to_string())),
        );
        for (field, name, value) in lines {
            // Show the values of the whole file once, with the first component.
            let is_repeated = number > 0 && of_file.contains(&field);
            if !view.selected.contains(&field) || !is_wanted(field, name) || is_repeated {
                continue;
            }
            let value = match (&inode.fid, field) {
                (Some(fid), Field::Fid) => fid.clone(),
                _ => value,
            };
            out += if shows_names { name } else { "" };
            out += &value;
            out.push('\n');
        }
    }
    out
}

/// The selected fields of a foreign layout: those of the inode. Other fields show the value.
fn foreign_fields(head: &LovForeignMd, value: &[u8], inode: &InodeLines, view: &View) -> String {
    let is_selected = |field| view.selected.contains(&field);
    let fid = inode.fid.iter().filter(|_| is_selected(Field::Fid)).cloned();
    let mdt = inode.mdt.iter().filter(|_| is_selected(Field::MdtIndex));
    let lines: Vec<String> = fid.chain(mdt.map(u32::to_string)).collect();
    match lines.is_empty() {
        true => foreign::text(head, value, false),
        false => lines.join("\n") + "\n",
    }
}

/// The line of a directory's default layout.
fn dir_line(plain: &PlainLayout, view: &View) -> String {
    let shown = [
        Field::StripeCount,
        Field::StripeSize,
        Field::Pattern,
        Field::StripeOffset,
        Field::Pool,
    ];
    let lines = plain_lines(plain, false, true, view);
    let parts: Vec<String> = lines
        .iter()
        .filter(|(field, _, value)| shown.contains(field) && !(*field == Field::Pool && value.is_empty()))
        .map(|(_, name, value)| format!("{}{value}", name.trim_start_matches("lmm_")))
        .collect();
    parts.join(" ") + "\n"
}

/// The head and the components. Outside of YAML, an empty line follows each component.
fn composite_text(composite: &CompositeLayout, is_dir: bool, view: &View) -> String {
    let (outer, inner) = if view.yaml { ("", "    ") } else { ("  ", "    ") };
    let mut out = lines_text(&head_lines(Some(composite)), outer, view);
    if view.yaml {
        out += "components:\n";
    }
    let on_ost = |plain: &PlainLayout| {
        view.ost
            .is_none_or(|ost| plain.objects.iter().any(|o| o.l_ost_idx == ost))
    };
    for (entry, plain) in composite.components.iter().filter(|(_, p)| on_ost(p)) {
        let has_objects = entry.lcme_flags & LCME_FL_INIT != 0 && !is_dir;
        let mut lines = lines_text(&entry_lines(entry, plain), inner, view);
        if view.yaml {
            lines.replace_range(..4, "  - ");
            lines += "    sub_layout:\n";
        }
        out += &lines;
        out += &lines_text(&plain_lines(plain, has_objects, false, view), "      ", view);
        if has_objects && plain.pattern & LOV_PATTERN_MDT == 0 {
            out += &objects_text(plain, Nesting::Component, view);
        }
        out += if view.yaml { "" } else { "\n" };
    }
    out
}

/// The lines with their names; nothing with `quiet`. Leaves out empty values; without `verbose`,
/// also leaves out [`Field::Detail`] and [`Field::Fid`].
fn lines_text(lines: &[Line], indent: &str, view: &View) -> String {
    if view.quiet {
        return String::new();
    }
    let is_shown = |(field, _, value): &&Line| match field {
        Field::Detail | Field::Fid => view.verbose,
        Field::ExtensionSize => value != "0",
        _ => !value.is_empty(),
    };
    let line = |(_, name, value): &Line| format!("{indent}{name}{value}\n");
    lines.iter().filter(is_shown).map(line).collect()
}

/// The lines of a composite layout's head; without one, the values that lfs shows for a plain
/// layout.
fn head_lines(composite: Option<&CompositeLayout>) -> Vec<Line> {
    let generation = composite.map_or(0, |c| c.head.lcm_layout_gen);
    let mirrors = composite.map_or(1, |c| c.head.lcm_mirror_count + 1);
    let entries = composite.map_or(0, |c| c.head.lcm_entry_count);
    vec![
        (Field::Generation, "lcm_layout_gen:    ", generation.to_string()),
        (Field::MirrorCount, "lcm_mirror_count:  ", mirrors.to_string()),
        (Field::ComponentCount, "lcm_entry_count:   ", entries.to_string()),
    ]
}

/// The lines of a component. Only an extension component (SEL) has an extension size: its stripe
/// size holds it, in units of [`SEL_UNIT_SIZE`] bytes.
fn entry_lines(entry: &LovCompMdEntryV1, plain: &PlainLayout) -> Vec<Line> {
    let is_extension = entry.lcme_flags & LCME_FL_EXTENSION != 0;
    let extension = u64::from(plain.stripe_size) * u64::from(SEL_UNIT_SIZE) * u64::from(is_extension);
    let offset = |at: u64| match at {
        u64::MAX => "EOF".to_owned(),
        at => at.to_string(),
    };
    let names = FLAG_NAMES.iter().filter(|(bit, _)| entry.lcme_flags & bit != 0);
    let flags: Vec<&str> = names.map(|(_, name)| *name).collect();
    let flags = if flags.is_empty() {
        "0".to_owned()
    } else {
        flags.join(",")
    };
    let extent = entry.lcme_extent;
    vec![
        (
            Field::ComponentId,
            "lcme_id:             ",
            entry.lcme_id.to_string(),
        ),
        (
            Field::MirrorId,
            "lcme_mirror_id:      ",
            mirror_id(entry).to_string(),
        ),
        (Field::ComponentFlags, "lcme_flags:          ", flags),
        (
            Field::ComponentStart,
            "lcme_extent.e_start: ",
            offset(extent.e_start),
        ),
        (Field::ComponentEnd, "lcme_extent.e_end:   ", offset(extent.e_end)),
        (
            Field::ExtensionSize,
            "lcme_extension_size: ",
            extension.to_string(),
        ),
    ]
}

/// The lines of a plain layout or of the layout of a component. Without objects, the field of the
/// generation holds the first OST of the request; for data on an MDT, it holds the MDT's index.
fn plain_lines(plain: &PlainLayout, has_objects: bool, is_dir: bool, view: &View) -> Vec<Line> {
    let is_default = is_dir && !view.raw;
    let count = match plain.stripe_count {
        0 if is_default => DEFAULT_STRIPE_COUNT,
        count => count,
    };
    let size = match plain.stripe_size {
        0 if is_default => DEFAULT_STRIPE_SIZE,
        size => size,
    };
    let is_on_mdt = plain.pattern & LOV_PATTERN_MDT != 0;
    let (generation, offset) = match plain.objects.first() {
        _ if is_dir || !has_objects => (0, signed(plain.layout_gen)),
        _ if is_on_mdt => (0, plain.layout_gen.into()),
        Some(object) => (plain.layout_gen, object.l_ost_idx as i32),
        None => (plain.layout_gen, -1),
    };
    let offset = match offset {
        -1 => "-1".to_owned(),
        n if view.hex => format!("{n:#x}"),
        n => n.to_string(),
    };
    let oi = &plain.oi;
    let fid = Fid::new(oi.oi_seq, oi.oi_id as u32, (oi.oi_id >> 32) as u32);
    let offset_name = if is_on_mdt {
        "lmm_mdt_index:     "
    } else {
        "lmm_stripe_offset: "
    };
    vec![
        (
            Field::Detail,
            "lmm_magic:         ",
            format!("0x{:08X}", plain.magic),
        ),
        (Field::Detail, "lmm_seq:           ", format!("{:#x}", oi.oi_seq)),
        (Field::Detail, "lmm_object_id:     ", format!("{:#x}", oi.oi_id)),
        (Field::Fid, "lmm_fid:           ", fid_text(fid, view)),
        (
            Field::StripeCount,
            "lmm_stripe_count:  ",
            signed(count).to_string(),
        ),
        (Field::StripeSize, "lmm_stripe_size:   ", size.to_string()),
        (Field::Pattern, "lmm_pattern:       ", pattern_name(plain.pattern)),
        (Field::Generation, "lmm_layout_gen:    ", generation.to_string()),
        (Field::StripeOffset, offset_name, offset),
        (Field::Pool, "lmm_pool:          ", plain.pool.to_string()),
    ]
}

/// A FID; YAML has it without brackets.
fn fid_text(fid: Fid, view: &View) -> String {
    let text = fid.to_string();
    match view.yaml {
        true => text.trim_matches(['[', ']']).to_owned(),
        false => text,
    }
}

/// The place of a list of objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nesting {
    Top,
    Component,
}

/// The objects: a list in YAML and in components, otherwise a table.
fn objects_text(plain: &PlainLayout, nesting: Nesting, view: &View) -> String {
    let mut out = match nesting {
        Nesting::Component => "      lmm_objects:\n".to_owned(),
        Nesting::Top if view.yaml => "lmm_objects:\n".to_owned(),
        Nesting::Top => "\tobdidx\t\t objid\t\t objid\t\t group\n".to_owned(),
    };
    for (i, object) in plain.objects.iter().enumerate() {
        let index = object.l_ost_idx;
        if view.ost.is_some_and(|ost| ost != index) {
            continue;
        }
        let fid = object.l_ost_oi.fid();
        let number = if view.hex {
            format!("{index:#x}")
        } else {
            index.to_string()
        };
        out += &match nesting {
            _ if view.yaml => format!(
                "      - l_ost_idx: {number}\n        l_fid:     {}\n",
                fid_text(fid, view)
            ),
            Nesting::Component => format!("      - {i:3}: {{ l_ost_idx: {number:>3}, l_fid: {fid} }}\n"),
            Nesting::Top => {
                let (hex, mark) = (
                    format!("{:#x}", fid.f_oid),
                    if view.ost.is_some() { " *" } else { "" },
                );
                format!(
                    "\t{number:>6}\t{:14}\t{hex:>13}\t{:#14x}{mark}\n",
                    fid.f_oid, fid.f_seq
                )
            }
        };
    }
    out
}

fn pattern_name(pattern: u32) -> String {
    const OVERSTRIPED: u32 = LOV_PATTERN_RAID0 | LOV_PATTERN_OVERSTRIPING;
    match pattern {
        LOV_PATTERN_RAID0 => "raid0".to_owned(),
        OVERSTRIPED => "raid0,overstriped".to_owned(),
        LOV_PATTERN_MDT => "mdt".to_owned(),
        other => format!("{other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{LovCompMdV1, LovOstDataV1, OstId};

    fn file(objects: &[(u32, u64, u32)], stripe_size: u32) -> PlainLayout {
        let object = |(index, seq, oid): &(u32, u64, u32)| LovOstDataV1 {
            l_ost_oi: OstId::from(Fid::new(*seq, *oid, 0)),
            l_ost_idx: *index,
            ..Default::default()
        };
        let objects = objects.iter().map(object).collect();
        PlainLayout::raid0(Fid::new(0x2_0000_0401, 5, 0), stripe_size, objects)
    }

    fn two_stripes() -> LovLayout {
        LovLayout::Plain(file(
            &[(0, 0x2_4000_0400, 0x3e4), (1, 0x2_c000_0401, 0x3e5)],
            1 << 20,
        ))
    }

    #[test]
    fn plain_layout_matches_lfs() {
        let expected = "lmm_stripe_count:  2\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n\
                        lmm_layout_gen:    0\nlmm_stripe_offset: 0\n\tobdidx\t\t objid\t\t objid\t\t group\n\
                        \t     0\t           996\t        0x3e4\t   0x240000400\n\
                        \t     1\t           997\t        0x3e5\t   0x2c0000401\n\n";
        assert_eq!(
            layout_text(&two_stripes(), false, &InodeLines::default(), &View::default()),
            expected
        );
        let on_ost_1 = View {
            ost: Some(1),
            quiet: true,
            ..View::default()
        };
        let expected = "\tobdidx\t\t objid\t\t objid\t\t group\n\t     1\t           997\t        0x3e5\t   0x2c0000401 *\n\n";
        assert_eq!(
            layout_text(&two_stripes(), false, &InodeLines::default(), &on_ost_1),
            expected
        );
    }

    #[test]
    fn one_selected_field_has_no_name() {
        let show = |fields: &[Field]| {
            let view = View {
                selected: fields.to_vec(),
                ..View::default()
            };
            layout_text(&two_stripes(), false, &InodeLines::default(), &view)
        };
        assert_eq!(show(&[Field::StripeCount]), "2\n");
        assert_eq!(show(&[Field::Fid]), "[0x200000401:0x5:0x0]\n");
        assert_eq!(show(&[Field::ComponentCount]), "0\n");
        assert_eq!(show(&[Field::MirrorCount]), "1\n");
        assert_eq!(show(&[Field::ComponentEnd]), "EOF\n");
        assert_eq!(show(&[Field::ComponentId]), "0\n");
        assert_eq!(show(&[Field::Generation]), "0\n");
        assert_eq!(
            show(&[Field::StripeSize, Field::StripeCount]),
            "lmm_stripe_count:  2\nlmm_stripe_size:   1048576\n"
        );
    }

    #[test]
    fn directory_without_default_layout_shows_default_of_file_system() {
        let none = LovLayout::Plain(PlainLayout::request(0, 0, None));
        let show = |raw| {
            let view = View {
                raw,
                ..View::default()
            };
            layout_text(&none, true, &InodeLines::default(), &view)
        };
        assert_eq!(
            show(false),
            "stripe_count:  1 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n\n"
        );
        assert!(show(true).starts_with("stripe_count:  0 stripe_size:   0 "));
    }

    #[test]
    fn composite_layout_matches_lfs() {
        let entry = |id, flags, start, end| {
            let mut entry = LovCompMdEntryV1 {
                lcme_id: id,
                lcme_flags: flags,
                ..Default::default()
            };
            (entry.lcme_extent.e_start, entry.lcme_extent.e_end) = (start, end);
            entry
        };
        let composite = LovLayout::Composite(CompositeLayout {
            head: LovCompMdV1 {
                lcm_layout_gen: 3,
                lcm_entry_count: 2,
                ..Default::default()
            },
            components: vec![
                (
                    entry(1, LCME_FL_INIT, 0, 1 << 20),
                    file(&[(0, 0x2_4000_0400, 0x3f2)], 1 << 20),
                ),
                (
                    entry(2, 0, 1 << 20, u64::MAX),
                    PlainLayout::request(4 << 20, 1, None),
                ),
            ],
        });
        let expected = "  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: 0
      lmm_objects:
      -   0: { l_ost_idx:   0, l_fid: [0x240000400:0x3f2:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    0
      lmm_stripe_offset: -1

";
        assert_eq!(
            layout_text(&composite, false, &InodeLines::default(), &View::default()),
            expected
        );
        let yaml = View {
            yaml: true,
            ..View::default()
        };
        let text = layout_text(&composite, false, &InodeLines::default(), &yaml);
        assert!(text.starts_with("lcm_layout_gen:    3\n"), "{text}");
        assert!(
            text.contains("components:\n  - lcme_id:             1\n    lcme_mirror_id:      0\n"),
            "{text}"
        );
        assert!(
            text.contains("      - l_ost_idx: 0\n        l_fid:     0x240000400:0x3f2:0x0\n  - lcme_id:"),
            "{text}"
        );
        let stripe_size = View {
            selected: vec![Field::StripeSize],
            ..View::default()
        };
        assert_eq!(
            layout_text(&composite, false, &InodeLines::default(), &stripe_size),
            "1048576\n",
            "the last one with objects"
        );
    }
}
