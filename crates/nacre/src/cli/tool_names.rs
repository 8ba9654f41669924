//! The names of Lustre's tools. The binary acts as a tool if it is called by the tool's name, as
//! through the links of `nacre install-links`.

use std::ffi::OsString;
use std::path::Path;

/// Each name, and the subcommand of `nacre` that it stands for.
pub(crate) const TOOLS: [(&str, &str); 7] = [
    ("lfs", "lfs"),
    ("lctl", "lctl"),
    ("lnetctl", "lnetctl"),
    ("lst", "lst"),
    ("mkfs.lustre", "mkfs"),
    ("mount.lustre", "mount"),
    ("mount.nacre", "mount"),
];

/// Inserts the subcommand that the name of the binary stands for. Inserts `mount` also if the first
/// argument is a mount source: mount(8) calls the helper for file systems of type `fuse.nacre` in
/// this form: `nacre 10.0.0.1@tcp:/testfs /mnt -o OPTIONS`.
pub(super) fn insert_subcommand(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let is_source = |arg: &OsString| arg.to_str().is_some_and(|a| client::parse_source(a).is_ok());
    let word = match args.first().and_then(|called| subcommand_of(called.as_ref())) {
        Some(word) => Some(word),
        None if args.get(1).is_some_and(is_source) => Some("mount"),
        None => None,
    };
    if let Some(word) = word {
        args.insert(1, word.into());
    }
    args
}

/// The subcommand for the path or name of a tool.
fn subcommand_of(called: &Path) -> Option<&'static str> {
    let name = called.file_name()?.to_str()?;
    TOOLS
        .iter()
        .find(|(tool, _)| *tool == name)
        .map(|(_, subcommand)| *subcommand)
}

#[cfg(test)]
mod tests {
    use super::insert_subcommand;

    fn inserted(line: &str) -> String {
        let args = insert_subcommand(line.split(' ').map(Into::into));
        args.join(" ".as_ref()).to_string_lossy().into_owned()
    }

    #[test]
    fn name_of_a_tool_becomes_a_subcommand() {
        assert_eq!(inserted("/usr/bin/lfs df -h"), "/usr/bin/lfs lfs df -h");
        assert_eq!(inserted("mkfs.lustre --mgs d"), "mkfs.lustre mkfs --mgs d");
        let helper = "mount.lustre -o ro 10.0.0.1@tcp:/testfs /mnt";
        assert_eq!(inserted(helper), helper.replacen(' ', " mount ", 1));
    }

    #[test]
    fn source_after_the_own_name_becomes_a_mount() {
        assert_eq!(
            inserted("nacre 10.0.0.1@tcp:/testfs /mnt"),
            "nacre mount 10.0.0.1@tcp:/testfs /mnt"
        );
        assert_eq!(inserted("nacre lfs df"), "nacre lfs df");
    }
}
