"""The page of a study: verdict, reasons, evidence and assumptions."""
