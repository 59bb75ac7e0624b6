//! The text of a file of vectors: one line for each element of a list, for a person and for `git diff`.

use serde_json::Value;
use std::fmt::Write;

/// A file of vectors as it is written.
pub(crate) fn page(file: &Value) -> String {
    let mut text = String::from("{\n");
    let entries = file.as_object().expect("a file is an object");
    for (at, (key, value)) in entries.iter().enumerate() {
        let comma = if at + 1 < entries.len() { "," } else { "" };
        match value.as_array() {
            Some(list) => {
                writeln!(text, "  \"{key}\": [").expect("a string takes any text");
                for (at, element) in list.iter().enumerate() {
                    let comma = if at + 1 < list.len() { "," } else { "" };
                    writeln!(text, "    {}{comma}", line(element)).expect("a string takes any text");
                }
                writeln!(text, "  ]{comma}").expect("a string takes any text");
            }
            None => writeln!(text, "  \"{key}\": {}{comma}", line(value)).expect("a string takes any text"),
        }
    }
    text + "}\n"
}

fn line(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|(key, value)| format!("\"{key}\": {}", line(value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(line).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
