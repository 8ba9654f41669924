//! The device argument of a mount command: an MGS, a file system, and optionally a directory in it.

use crate::client::Client;
use crate::error::ClientError;
use std::fmt;
use wire::Nid;

/// `MGSNID[,MGSNID...][:MGSNID...]:/FSNAME[/SUBDIR]`, as mount commands write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The MGS's NIDs.
    pub mgs: Vec<Nid>,
    /// The file system's name.
    pub fsname: String,
    /// The directory to mount, without a leading `/`. Empty: the root.
    pub subdir: String,
}

/// Parses the device argument of a mount command.
///
/// # Errors
///
/// [`ClientError::Name`]: an invalid file system name. [`ClientError::Source`]: a text of another
/// form than [`Source`], or a directory path with `..`.
pub fn parse_source(text: &str) -> Result<Source, ClientError> {
    let malformed = |problem: String| ClientError::Source {
        text: text.to_owned(),
        problem,
    };
    let (nids, path) = text
        .split_once(":/")
        .ok_or_else(|| malformed("not of the form MGSNID:/FSNAME, such as 10.0.0.1@tcp:/fs".to_owned()))?;
    let mut names = path.split('/').filter(|n| !n.is_empty() && *n != ".");
    let fsname = names.next().unwrap_or_default().to_owned();
    Client::check_fsname(&fsname)?;
    let names: Vec<&str> = names.collect();
    if names.contains(&"..") {
        return Err(malformed(
            "the path of the directory must not contain '..'".to_owned(),
        ));
    }
    let mgs = nids.split([',', ':']).map(str::parse).collect::<Result<_, _>>();
    Ok(Source {
        mgs: mgs.map_err(|e| malformed(format!("{e}")))?,
        fsname,
        subdir: names.join("/"),
    })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nids: Vec<String> = self.mgs.iter().map(Nid::to_string).collect();
        write!(f, "{}:/{}", nids.join(","), self.fsname)?;
        match self.subdir.is_empty() {
            true => Ok(()),
            false => write!(f, "/{}", self.subdir),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse_source;

    #[test]
    fn a_source_has_an_mgs_and_a_valid_file_system_name() {
        let source = parse_source("10.0.0.1@tcp,10.0.0.2@tcp1:/lus").unwrap();
        assert_eq!((source.mgs.len(), source.fsname.as_str()), (2, "lus"));
        assert_eq!(source.subdir, "");
        for bad in [
            "10.0.0.1@tcp",
            "10.0.0.1@tcp:/",
            "10.0.0.1@tcp:/waytoolong",
            "nowhere:/fs",
            "10.0.0.1@tcp://",
        ] {
            assert!(parse_source(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_source_may_name_a_directory() {
        for (text, subdir) in [
            ("10.0.0.1@tcp:/lus/", ""),
            ("10.0.0.1@tcp:/lus/a", "a"),
            ("10.0.0.1@tcp:/lus//a/./b c/", "a/b c"),
            ("10.0.0.1@tcp:/lus/x:/y", "x:/y"),
        ] {
            assert_eq!(parse_source(text).unwrap().subdir, subdir, "{text}");
        }
        let formatted = parse_source("10.0.0.1@tcp:10.0.0.2@tcp:/lus/a//b")
            .unwrap()
            .to_string();
        assert_eq!(formatted, "10.0.0.1@tcp,10.0.0.2@tcp:/lus/a/b");
        for bad in ["10.0.0.1@tcp:/lus/..", "10.0.0.1@tcp:/lus/a/../b"] {
            let message = parse_source(bad).unwrap_err().to_string();
            assert!(message.contains("'..'"), "{message}");
        }
    }
}
