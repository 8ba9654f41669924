//! Writes YAML in lnetctl's layout.

use std::fmt::Write;

/// A value to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Yaml {
    Text(String),
    Map(Vec<(String, Yaml)>),
    /// A list of maps; other items are not written.
    List(Vec<Yaml>),
}

/// Indentation; lnetctl uses two different styles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `net`, `peer` and `route`: maps are indented by six columns; a list is not indented below
    /// its key.
    Wide,
    /// All other sections: maps are indented by four columns.
    Narrow,
}

impl Yaml {
    pub(super) fn text(value: impl ToString) -> Yaml {
        Yaml::Text(value.to_string())
    }

    pub(super) fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Yaml)>) -> Yaml {
        Yaml::Map(entries.into_iter().map(|(k, v)| (k.into(), v)).collect())
    }

    /// A map of names and numbers.
    pub(super) fn numbers<const N: usize>(entries: [(&str, i64); N]) -> Yaml {
        Yaml::map(entries.map(|(k, v)| (k, Yaml::text(v))))
    }

    /// Adds an entry to a map; other values stay unchanged.
    pub(super) fn with_entry(self, key: &str, value: Yaml) -> Yaml {
        match self {
            Yaml::Map(mut entries) => {
                entries.push((key.to_owned(), value));
                Yaml::Map(entries)
            }
            other => other,
        }
    }

    /// The text of a section with this name.
    pub(super) fn section(&self, name: &str, style: Style) -> String {
        let mut out = String::new();
        write_entry(&mut out, name, self, 0, style);
        out
    }
}

/// Writes a key and its value. The caller has written the indentation of the key.
fn write_entry(out: &mut String, key: &str, value: &Yaml, indent: usize, style: Style) {
    let _ = match value {
        Yaml::Text(text) => writeln!(out, "{key}: {text}"),
        Yaml::Map(_) | Yaml::List(_) => writeln!(out, "{key}:"),
    };
    match value {
        Yaml::Text(_) => {}
        Yaml::Map(entries) => {
            let indent = indent + if style == Style::Wide { 6 } else { 4 };
            for (key, value) in entries {
                let _ = write!(out, "{:indent$}", "");
                write_entry(out, key, value, indent, style);
            }
        }
        Yaml::List(items) => {
            let (dash, inner) = match (style, indent) {
                (Style::Wide, _) => (indent, indent + 6),
                (Style::Narrow, 0) => (4, 6),
                (Style::Narrow, _) => (indent + 2, indent + 4),
            };
            for item in items {
                let Yaml::Map(entries) = item else { continue };
                for (i, (key, value)) in entries.iter().enumerate() {
                    let _ = match i {
                        0 => write!(out, "{:dash$}-{:2$}", "", "", inner - dash - 1),
                        _ => write!(out, "{:inner$}", ""),
                    };
                    write_entry(out, key, value, inner, style);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Style, Yaml};

    #[test]
    fn sections_have_lnetctls_layout() {
        let ni = Yaml::map([
            ("nid", Yaml::text("10.88.0.11@tcp")),
            ("interfaces", Yaml::map([("0", Yaml::text("eth0"))])),
        ]);
        let net = Yaml::map([
            ("net type", Yaml::text("tcp")),
            ("local NI(s)", Yaml::List(vec![ni])),
        ]);
        let expected = "net:\n-     net type: tcp\n      local NI(s):\n      -     nid: 10.88.0.11@tcp\n            \
                        interfaces:\n                  0: eth0\n";
        assert_eq!(Yaml::List(vec![net]).section("net", Style::Wide), expected);
        let global = Yaml::numbers([("numa_range", 0), ("discovery", 1)]);
        assert_eq!(
            global.section("global", Style::Narrow),
            "global:\n    numa_range: 0\n    discovery: 1\n"
        );
        let cpt = Yaml::map([("cpt[0]", Yaml::map([("tiny", Yaml::numbers([("npages", 0)]))]))]);
        let expected = "routing:\n    - cpt[0]:\n          tiny:\n              npages: 0\n";
        assert_eq!(Yaml::List(vec![cpt]).section("routing", Style::Narrow), expected);
    }
}
