"""Other frameworks to compare with: their settings, their virtual environments, their drivers.

`settings.toml` says with what they are measured, `locks/` which versions are installed. `drivers/` holds the
programs that train with them; these run in the frameworks' virtual environments and import nothing of Spreeze.
"""
