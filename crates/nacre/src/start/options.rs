//! Files of module options in the form of Lustre's `/etc/modprobe.d`:
//!
//! ```text
//! # a comment
//! options lnet networks="tcp0(eth0)[0,1]" cpu_npartitions=4
//! options mdt mds_num_cpts=[0,1]
//! ```

use std::path::Path;

use anyhow::{Context, Result, bail};

/// Nacre accepts options of these Lustre modules, also under older names of some modules.
const MODULES: [&str; 9] = [
    "libcfs",
    "lnet",
    "lnet_selftest",
    "ksocklnd",
    "ptlrpc",
    "mdt",
    "mds",
    "ofd",
    "ost",
];

/// Reads the settings of a file, as `NAME=VALUE`.
pub(super) fn read(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut settings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        settings.extend(parse_line(line).with_context(|| format!("{} line {}", path.display(), index + 1))?);
    }
    Ok(settings)
}

/// The settings in a line; none in an empty line or a comment.
fn parse_line(line: &str) -> Result<Vec<String>> {
    let mut words = split_words(line)?.into_iter();
    match words.next().as_deref() {
        None => return Ok(Vec::new()),
        Some(comment) if comment.starts_with('#') => return Ok(Vec::new()),
        Some("options") => {}
        Some(other) => bail!("expected options MODULE NAME=VALUE.., found '{other}'"),
    }
    let module = words.next().unwrap_or_default();
    if !MODULES.contains(&module.as_str()) {
        bail!(
            "module '{module}' has no parameters in Nacre; leave the line out (modules with parameters: {})",
            MODULES.join(", ")
        );
    }
    Ok(words.collect())
}

/// Splits a line into words; quotes keep white space within a word.
fn split_words(line: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    if quoted {
        bail!("a quote is not closed");
    }
    words.push(word);
    words.retain(|w| !w.is_empty());
    Ok(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{parse_line, read};

    #[test]
    fn module_options_file_is_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lustre.conf");
        let text = "# servers\noptions lnet networks=\"tcp0(eth0)[0,1], tcp1(eth1)\" cpu_npartitions=4\n\n options mdt\tmds_num_cpts=[0,1] \n";
        std::fs::write(&path, text).unwrap();
        assert_eq!(
            read(&path).unwrap(),
            [
                "networks=tcp0(eth0)[0,1], tcp1(eth1)",
                "cpu_npartitions=4",
                "mds_num_cpts=[0,1]"
            ]
        );
        std::fs::write(&path, "\nalias lustre x\n").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("lustre.conf line 2: expected options"));
    }

    #[test]
    fn options_of_every_module_with_parameters_are_accepted() {
        let modules = lnet::START.iter().map(|p| p.module);
        let modules = modules.chain(rpc::START.iter().map(|p| p.module));
        for module in modules.chain(lst::START.iter().map(|p| p.module)) {
            assert!(parse_line(&format!("options {module} a=1")).is_ok(), "{module}");
        }
    }

    #[test]
    fn error_names_the_module_or_the_open_quote() {
        assert!(
            parse_line("options ko2iblnd credits=1")
                .unwrap_err()
                .to_string()
                .contains("'ko2iblnd' has no")
        );
        assert!(
            parse_line("options lnet networks=\"tcp")
                .unwrap_err()
                .to_string()
                .contains("not closed")
        );
    }
}
